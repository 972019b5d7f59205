"""The next round: its clients train while a round is evaluated, which is on disk before the next one costs privacy."""

import threading

import pytest

from dordis.errors import InputError
from dordis.ledger.ledger import Ledger
from dordis.records import run_records
from dordis.rounds.watch import AttemptBegan
from dordis.runs.coordinator import EarlyInvitation, check_finite, check_planned
from dordis.simulation.ideal import IdealRounds
from dordis.simulation.population import FullRounds
from dordis.simulation.run import prepare
from tests.paused_processes import HANG
from tests.simulation.whole_runs import settings_of

KEYS = ("federation.clients=6", "federation.per_round=6")


def start(folder, *keys):
    return prepare(settings_of(*KEYS, *keys)).start(folder, "")


def wait_for_invitation():
    """Wait until the thread that invites has done all that it does."""
    for thread in threading.enumerate():
        if thread.name == "dordis invitation":
            thread.join(HANG)
            assert not thread.is_alive()


def evaluate_late(run):
    """Let the server evaluate when the invitation of the next round is over."""
    evaluate = run.job.app.evaluate

    def wait_and_evaluate():
        wait_for_invitation()
        return evaluate()

    run.job.app.evaluate = wait_and_evaluate


def watch_costs(monkeypatch, run):
    """Return a list of the rounds on disk when a round is counted or charged: the index of that round, and theirs."""
    seen = []

    def watched(name):
        function = getattr(Ledger, name)

        def call(self, *arguments):
            index = arguments[0] if name == "record_owner_charges" else arguments[0].index
            seen.append((index, [record.index for record in run_records.load_run(run.records.path).rounds]))
            return function(self, *arguments)

        monkeypatch.setattr(Ledger, name, call)

    watched("record_owner_charges")
    watched("reserve")
    return seen


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_clients_train_while_the_round_before_is_evaluated(tmp_path, fidelity):
    run = start(tmp_path, f"simulation.fidelity={fidelity}")
    begun, evaluate = threading.Event(), run.job.app.evaluate
    client = run.home.clients(1)
    train = client.prepare_data

    def note_training(info, model):
        if info.number > 1:
            begun.set()
        return train(info, model)

    client.prepare_data = note_training

    def wait_and_evaluate():
        assert begun.wait(HANG)
        return evaluate()

    run.job.app.evaluate = wait_and_evaluate
    assert [done.record.number for done in run.rounds(early=True)] == [1, 2, 3]


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_rounds_have_the_same_clients_numbers_and_charges_as_one_after_the_other(tmp_path, fidelity):
    keys = (f"simulation.fidelity={fidelity}", "privacy.noise.kind=none")
    alone, beside = start(tmp_path / "alone", *keys), start(tmp_path / "beside", *keys)
    evaluate_late(beside)
    late, begun, evaluated = beside.job.app.evaluate, [], []
    beside.job.app.evaluate = lambda: late() | {"attempt": evaluated.append(begun[-1]) or 0.0}

    def watch(event):
        if isinstance(event, AttemptBegan):
            begun.append(event.number)

    rounds = [list(alone.rounds()), list(beside.rounds(watch, early=True))]
    assert evaluated == [2, 3, 3]  # nobody is invited after the last round
    for one, other in zip(*rounds, strict=True):
        for name, value in one.metrics.values.items():
            assert value == pytest.approx(other.metrics.values[name], abs=1e-3)  # clients round at random
        assert (one.record.index, one.record.clients) == (other.record.index, other.record.clients)
    stored = run_records.load_run(beside.records.path)
    assert [record.number for record in stored.rounds] == [line.number for line in stored.metrics] == [1, 2, 3]


@pytest.mark.parametrize("stored_late", [False, True], ids=["stored first", "stored after the next charge"])
@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_a_round_is_on_disk_before_the_next_one_is_counted_or_charged(tmp_path, monkeypatch, fidelity, stored_late):
    run = start(tmp_path, f"simulation.fidelity={fidelity}")
    costs, late = watch_costs(monkeypatch, run), []
    evaluate_late(run)
    if stored_late:  # as if nobody waited for the records: what is watched here notices it
        finish = run.records.finish

        def finish_later(*arguments):
            while late:
                finish(*late.pop())
            late.append(arguments)

        run.records.finish = finish_later
    list(run.rounds(early=True))
    assert [index for index, _ in costs] == [0, 0, 1, 1, 2, 2]  # each round is counted, then charged
    assert all(on_disk == list(range(index)) for index, on_disk in costs) is not stored_late


def test_an_evaluation_that_fails_ends_the_run_and_nothing_of_the_next_round_is_charged(tmp_path):
    run = start(tmp_path)
    evaluate_late(run)
    late = run.job.app.evaluate
    run.job.app.evaluate = lambda: late() | ({"loss": float("nan")} if run.job.app.rounds == 2 else {})
    with pytest.raises(InputError, match="'loss' is not finite after round 2: training diverged"):
        list(run.rounds(early=True))
    assert [record.number for record in run_records.load_run(run.records.path).rounds] == [1]
    assert run._ledger.last_index() == 1
    assert sorted(index for _, index in run._ledger.owner_charges()) == [0, 1]
    again = prepare(settings_of(*KEYS)).resume(run.records.path)
    assert [done.record.index for done in again.rounds(early=True)] == [2, 3]


def test_an_invitation_that_fails_leaves_the_round_before_on_disk(tmp_path):
    """The second update would have a length that the application did not declare."""
    run = start(tmp_path, "app.server=tests.simulation.toys:Growing", "app.client=tests.simulation.toys:Half",
                "app.options.more=1")  # fmt: skip
    with pytest.raises(InputError, match="name every length there"):
        list(run.rounds(early=True))
    assert [record.number for record in run_records.load_run(run.records.path).rounds] == [1]


def test_the_receipt_of_a_round_is_there_when_clients_are_invited_to_the_next(tmp_path):
    run, seen = start(tmp_path), []
    model = run.job.app.model
    run.job.app.model = lambda: seen.append(len(list((run.records.path / "receipts").glob("*.json")))) or model()
    evaluate_late(run)
    list(run.rounds(early=True))
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_a_client_lost_while_the_server_evaluates_is_not_in_the_next_round(tmp_path, monkeypatch, fidelity):
    run = start(tmp_path, f"simulation.fidelity={fidelity}")
    evaluate_late(run)
    late, lost = run.job.app.evaluate, set()
    run.job.app.evaluate = lambda: lost.add(3) or late()
    for kind in (FullRounds, IdealRounds):
        monkeypatch.setattr(kind, "still_ready", lambda self, ready: frozenset(ready) - lost)
    rounds = list(run.rounds(early=True))
    assert [len(done.record.clients) for done in rounds] == [6, 5, 5]
    assert all(3 not in done.record.clients for done in rounds[1:])
    assert [done.parameters.n_max for done in rounds] == [6, 5, 5]  # so that client 3 is not a dropout of the round
    assert [survivors for done in rounds for survivors in done.record.survivors] == [6, 5, 5]


def test_the_result_of_an_invitation_is_its_error():
    def invite():
        raise InputError("nobody came")

    with pytest.raises(InputError, match="nobody came"):
        EarlyInvitation(invite).result()


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("fidelity", ["deployed", "full"])
def test_clients_are_invited_early_in_deployments_of_applications_that_allow_it(
    tmp_path, monkeypatch, fidelity, beside
):
    run = start(tmp_path)
    monkeypatch.setattr(type(run.job.app), "evaluates_beside", beside)
    monkeypatch.setattr(type(run.home), "fidelity", fidelity)
    monkeypatch.setattr(run, "rounds", lambda watch, *, early: asked.append(early) or ())
    monkeypatch.setattr(run, "close", lambda stopped: None)
    asked = []
    run.complete()
    assert asked == [beside and fidelity == "deployed"]


def test_metrics_are_finite_numbers_under_names_that_are_not_reserved():
    assert check_finite({"accuracy": 1, "loss": 0.5}, 3) == {"accuracy": 1.0, "loss": 0.5}
    for values, said in (
        ({"loss": float("inf")}, "'loss' is not finite after round 3: training diverged"),
        ({"epsilon": 1.0}, "reserved for the ledger"),
        ({"loss": "much"}, "for 'loss' it is str"),
        ([1.0], "a dictionary of names and numbers, not list"),
    ):
        with pytest.raises(InputError, match=said):
            check_finite(values, 3)


def test_an_update_has_a_length_that_was_declared():
    check_planned(40, (40, 80))
    with pytest.raises(InputError, match="next update has 41 coordinates, and its `dims` are 40, 80"):
        check_planned(41, (40, 80))
