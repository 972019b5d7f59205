"""A mechanism of somebody else's goes through a whole run with dropout, its ledger and its report."""

import pytest

from dordis.errors import InputError
from dordis.ledger.ledger import verify_ledger
from dordis.report.facts import read_facts
from dordis.report.statement import write_statement
from dordis.simulation.run import prepare
from tests.simulation.whole_runs import settings_of

DROPOUT = ("simulation.dropout.kind=rate", "simulation.dropout.rate=0.34")


def run_of(tmp_path, *keys):
    run = prepare(settings_of(*DROPOUT, *keys)).start(tmp_path, "")
    return run, run.complete()


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_it_costs_what_it_says_and_the_report_says_what_it_is(tmp_path, fidelity):
    keys = (f"simulation.fidelity={fidelity}",)
    run, result = run_of(tmp_path / "own", "privacy.mechanism=tests.simulation.toys:Toy", *keys)
    assert (result.stopped, result.rounds) == ("rounds", 3)
    summary = verify_ledger(run.records.path / "ledger.jsonl")
    assert summary.mechanisms == ("tests.simulation.toys:Toy",)
    assert 0 < summary.epsilon == result.epsilon <= 6
    (facts,) = read_facts([run.records.path])
    said = " ".join(text for item in write_statement(facts).items for text in item.paragraphs)
    assert "Mechanism 'tests.simulation.toys:Toy': toy noise, for a test." in said
    _, ours = run_of(tmp_path / "skellam", *keys)
    assert ours.epsilon == pytest.approx(result.epsilon)  # it is the same noise


@pytest.mark.parametrize(
    ("name", "said"),
    [("loud", "package.module:NAME"), ("tests.simulation.toys:Server", "subclass of Mechanism")],
)
def test_what_is_no_mechanism_is_refused(name, said):
    with pytest.raises(InputError, match=said):
        prepare(settings_of(f"privacy.mechanism={name}"))


def test_a_strategy_with_a_mechanism_of_its_own_takes_no_other():
    with pytest.raises(InputError, match="leave privacy\\.mechanism out"):
        prepare(settings_of("privacy.noise.kind=central", "privacy.mechanism=ddgauss"))


def test_with_lots_the_colluders_are_those_of_the_population():
    keys = ("federation.clients=400", "federation.per_round=50", "protocol.colluders=40", "app.options.dim=4")
    drawn, due = (
        prepare(settings_of(*keys, f"federation.selection={how}")).job.design.setting.colluders
        for how in ("vrf", "balanced")
    )
    assert due == 40
    assert 5 < drawn < 40  # five are drawn on average, and more than this with a chance of 2^-104
