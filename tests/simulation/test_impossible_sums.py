"""A run whose sum was spoilt charges the round, evicts nobody, tries again, and says so everywhere."""

import gc
import json

import msgspec
import pytest

from dordis.cli.commands.run import print_outcome, run_rounds
from dordis.cli.output import make_console
from dordis.errors import ImpossibleSum, InputError
from dordis.ledger.ledger import Ledger
from dordis.protocols.secagg import masking
from dordis.records import run_records
from dordis.report.facts import read_facts
from dordis.report.page import render_report
from dordis.simulation.run import prepare
from tests.simulation.whole_runs import settings_of

KEYS = ("federation.rounds=3", "simulation.fidelity=full", "app.options.dim=400")


def spoil(monkeypatch, rounds):
    """Have the first client of some rounds, by their index, mask with another seed than the one it shared."""
    honest = masking.add_masks

    def add_masks(suite, y, parameters, chunk, me, own, peers):
        lies = parameters.index in rounds and me == parameters.clients[0]
        used = msgspec.structs.replace(own, self_mask=bytes(32)) if lies else own
        honest(suite, y, parameters, chunk, me, used, peers)

    monkeypatch.setattr(masking, "add_masks", add_masks)


def test_a_spoilt_sum_is_charged_not_used_and_tried_again(tmp_path, monkeypatch, capsys):
    spoil(monkeypatch, rounds={0})
    run = prepare(settings_of(*KEYS)).start(tmp_path, "")
    used = []
    use = type(run.job.app).use_output
    monkeypatch.setattr(
        type(run.job.app), "use_output", lambda app, info, output: (used.append(info.index), use(app, info, output))
    )
    first, *others = run.rounds()
    assert used == [1, 2, 3]
    (failed,) = first.record.failures
    assert failed.index == 0
    assert "garbage" in failed.reason
    assert "not used" in failed.reason
    assert (len(failed.survivors), failed.evicted) == (6, ())
    assert all((done.record.sum_check, done.record.failures) == ("passed", ()) for done in others)
    spent = Ledger.open(run.records.path / run_records.LEDGER).round(0)
    assert spent is not None
    assert {*failed.survivors} == {*spent.charge.clients}
    assert not spent.outcomes
    stored = run_records.load_run(run.records.path)
    assert stored.sum_checks == {"passed": 3, "impossible": 1}
    assert not stored.evicted
    html = render_report(read_facts([run.records.path]))
    assert "1 impossible sum: charged and not used" in html
    assert ", ".join(map(str, failed.survivors)) in html
    print_outcome(run, run.complete(), as_json=True)
    assert json.loads(capsys.readouterr().out)["sum_check"] == {"passed": 3, "impossible": 1}


def test_a_run_whose_every_sum_is_spoilt_ends_and_names_the_clients_in_the_last_one(tmp_path, monkeypatch):
    spoil(monkeypatch, rounds=range(10))
    run = prepare(settings_of(*KEYS, "federation.tries=2", "privacy.epsilon=20")).start(tmp_path, "")
    with pytest.raises(InputError, match=r"is garbage.* one of the clients \d+, .* or the server is faulty"):
        run_rounds(run, make_console(), "run --resume", quiet=True)
    charged = Ledger.open(run.records.path / run_records.LEDGER)
    stored = run_records.load_run(run.records.path)
    assert [failed.index for failed in stored.failures] == [0, 1]
    for failed in stored.failures:  # U3 of every try, although no round has a line
        spent = charged.round(failed.index)
        assert spent is not None
        assert {*failed.survivors} == {*spent.charge.clients}
    assert (stored.rounds, stored.sum_checks) == ((), {"impossible": 2})
    html = render_report(read_facts([run.records.path]))
    assert "2 impossible sums: charged and not used" in html
    assert html.count("not finished") >= 2
    assert ", ".join(map(str, stored.failures[1].survivors)) in html


def test_attempts_that_failed_in_a_process_that_ended_are_still_known_when_the_run_goes_on(tmp_path, monkeypatch):
    spoil(monkeypatch, rounds={0, 1})
    config = settings_of(*KEYS, "federation.tries=2", "privacy.epsilon=20")
    run = prepare(config).start(tmp_path, "")
    with pytest.raises(ImpossibleSum):
        list(run.rounds())
    path = run.records.path
    with (path / run_records.FAILURES).open("ab") as file:
        file.write(b'{"index":2,"rea')  # the machine stopped here
    del run
    gc.collect()
    resumed = prepare(config).resume(path)
    assert [done.record.failures for done in resumed.rounds()] == [(), (), ()]
    stored = run_records.load_run(path)
    assert [failed.index for failed in stored.failures] == [0, 1]
    assert stored.sum_checks == {"passed": 3, "impossible": 2}


@pytest.mark.parametrize("noise", ["none", "central", "local", "ddgauss", "xnoise"])
@pytest.mark.parametrize("fidelity", ["ideal", "full"])
def test_both_fidelities_say_whether_sums_were_checked(tmp_path, noise, fidelity):
    kind = ["privacy.mechanism=ddgauss", "privacy.noise.kind=orig"] if noise == "ddgauss" else []
    keys = kind or [f"privacy.noise.kind={noise}"]
    run = prepare(settings_of("federation.rounds=1", f"simulation.fidelity={fidelity}", "app.options.dim=400", *keys))
    (finished,) = run.start(tmp_path, "").rounds()
    assert finished.record.sum_check == ("passed" if noise == "xnoise" else "not checked")
