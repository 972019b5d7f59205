"""`dordis reproduce network`: the paper's formula gives the paper's figures, and ours are counted."""

import json
from fractions import Fraction

import pytest

from dordis.cli import reproduce_network as command
from dordis.cli.reproduce_network import MEBI, PAPER_REBASING, PAPER_XNOISE, additional, count, dropped, rebased
from dordis.errors import InputError
from dordis.privacy.xnoise import Scheme


def test_the_formula_gives_every_figure_that_the_paper_prints():
    for (rate, n), printed in PAPER_XNOISE.items():
        assert round(additional(n, dropped(n, rate)) / MEBI, 1) == printed
    for weights, printed in PAPER_REBASING.items():
        assert round(rebased(weights) / MEBI, 1) == printed


@pytest.fixture(scope="module")
def counted():
    return {scheme: count(10, scheme, [0, 3]) for scheme in (Scheme.ORIG, Scheme.SINGLE, Scheme.EXACT)}


def test_exact_sends_a_share_of_each_seed_to_each_peer_and_single_one_only(counted):
    orig, single, exact = (counted[scheme][0].usual.up for scheme in counted)
    seeds = 10 - command.majority(10)
    assert exact - orig == pytest.approx(seeds * (single - orig), rel=0.25)
    assert exact - orig > 9 * seeds * 32  # ciphertexts of shares, for nine peers


def test_who_does_not_answer_costs_the_others_shares_of_its_seeds(counted):
    for scheme in (Scheme.SINGLE, Scheme.EXACT):
        assert counted[scheme][0].worst.up > counted[scheme][0].usual.up
    exact = counted[Scheme.EXACT]
    assert exact[1].worst.up < exact[0].worst.up  # the more drop, the less is due


def test_the_vector_does_not_count(monkeypatch, counted):
    monkeypatch.setattr(command, "LENGTH", 500)
    orig, single = (count(10, scheme, [0])[0].usual for scheme in (Scheme.ORIG, Scheme.SINGLE))
    expected = counted[Scheme.SINGLE][0].usual - counted[Scheme.ORIG][0].usual
    assert single - orig == expected


def test_json_has_every_size_rate_and_number_of_clients(capsys):
    command.network([8], None, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 3 * 4
    for row in rows:
        assert row["rebasing_paper"] == pytest.approx(row["rebasing_formula"], abs=0.05)
        assert 0 < row["single"] < row["exact"]
        assert row["xnoise_paper"] is None


def test_the_table_has_the_papers_figures_beside_ours(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    nothing = command.Counted(command.Traffic(0, 0), command.Traffic(0, 0))
    found = [command.Row(Fraction(d, 10), 300, additional(300, 30 * d), nothing, nothing) for d in range(4)]
    monkeypatch.setattr(command, "rows", lambda clients: found)
    command.network([300], tmp_path / "network.svg", as_json=False)
    shown = capsys.readouterr().out
    for word in ("1192.1", "5.5", "0%", "whatever the model's size"):
        assert word in shown
    assert "5.3" in (tmp_path / "network.svg").read_text()


def test_too_few_clients_are_refused():
    with pytest.raises(InputError, match="at least 4"):
        command.network([3], None, as_json=False)
