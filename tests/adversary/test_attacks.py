"""Every attack is refused, by the check and at the stage that its row names; the threat model lists every row."""

import pytest

from tests.adversary.attack import Attack
from tests.adversary.page import PAGE, render_page
from tests.adversary.suite import ATTACKS
from tests.case_samples import sample_cases

RUNS = [(attack, graph) for attack in ATTACKS for graph in attack.graphs]


@pytest.mark.parametrize(
    ("attack", "graph"), sample_cases(RUNS, one_in=3), ids=lambda value: getattr(value, "name", value)
)
def test_the_attack_is_refused_by_its_check_and_at_its_stage(attack: Attack, graph: str) -> None:
    outcome = attack.run(graph)
    assert not outcome.succeeded, outcome.detail
    assert (outcome.refused_by, outcome.stage) == (attack.refused_by, attack.stage)


def test_attacks_have_distinct_names_one_sentence_and_a_graph() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    for attack in ATTACKS:
        assert attack.text.endswith(".")
        assert attack.graphs
        assert not (attack.checks and attack.overlapping)


def test_the_threat_model_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == render_page(page), "write it anew: make pages"
