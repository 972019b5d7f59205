"""The state of a run under way, from its events: who is waited for, what is spent, and what was there before."""

import tracemalloc
from pathlib import Path

import msgspec
import pytest

from dordis.records.run_records import RoundRecord
from dordis.report.live import MOST_ROUNDS, STUCK, LiveRun
from dordis.rounds.watch import AttemptBegan, ClientAnswered, StageBegan, StageEnded
from dordis.simulation.run import prepare
from tests.simulation.whole_runs import settings_of


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def run(tmp_path: Path):
    return prepare(settings_of("simulation.fidelity=ideal")).start(tmp_path, "")


def test_a_client_that_holds_up_a_round_is_named_with_its_stage(run, clock):
    live = LiveRun(run.records.path, clock=clock)
    for event in (
        AttemptBegan(3, 5),
        StageBegan("Invite", (1, 2, 3, 4, 5)),
        *(ClientAnswered("Invite", u) for u in (1, 2, 3, 4)),
        StageEnded("Invite", (5,)),
        StageBegan("CollectInput", (1, 2, 3, 4), 0),
        StageBegan("CollectInput", (1, 2, 3, 4), 1),
        *(ClientAnswered("CollectInput", u, chunk) for u in (1, 2, 3) for chunk in (0, 1)),
        ClientAnswered("CollectInput", 4, 0),
    ):
        live.watch(event)
    first, second, *later = live.snapshot().stages
    assert (first.name, first.state, first.answered, first.missing) == ("invite", "done", 4, 1)
    assert (second.name, second.state, second.asked, second.answered) == ("collect input", "now", 4, 3)
    assert second.waiting == (4,)
    assert {stage.state for stage in later} <= {"later"}
    assert live.snapshot().warnings == ()
    clock.now += STUCK
    (warning,) = live.snapshot().warnings
    assert warning.startswith("Round 3 waits for client 4 at 'collect input' for 5 s; 3 of 4 have answered.")
    live.watch(ClientAnswered("CollectInput", 4, 1))
    assert live.snapshot().warnings == ()


def test_it_follows_a_run_and_knows_it_again_after_a_restart(run):
    live = LiveRun(run.records.path)
    for finished in run.rounds(live.watch):
        live.finish_round(finished.record, finished.metrics)
    live.end("has finished all rounds")
    seen, again = live.snapshot(), LiveRun(run.records.path).snapshot()
    assert seen.finished == seen.planned == len(seen.rounds) > 0
    assert seen.status == "has finished all rounds"
    assert again.rounds == seen.rounds
    assert (again.epsilon, again.metrics, again.dropped) == (seen.epsilon, seen.metrics, seen.dropped)
    assert {"epsilon", "seconds"} <= set(live.charts())
    assert [point[1] for point in live.charts()["epsilon"].series[0].values][-1] == seen.epsilon


def test_memory_does_not_grow_with_the_rounds(run):
    """Records are decoded anew, as each round makes its own; a thousand of them take a megabyte."""
    live = LiveRun(run.records.path)
    finished = next(run.rounds(live.watch))
    record, metrics = msgspec.json.encode(finished.record), finished.metrics

    def finish(rounds: int) -> int:
        for _ in range(rounds):
            live.finish_round(msgspec.json.decode(record, type=RoundRecord), metrics)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = finish(MOST_ROUNDS)
        assert finish(1000) - few < 100_000
    finally:
        tracemalloc.stop()
    seen = live.snapshot()
    assert (seen.finished, len(seen.rounds)) == (1000 + MOST_ROUNDS, MOST_ROUNDS)
    assert seen.rounds_per_hour == pytest.approx(3600 / finished.record.seconds)


def test_most_of_the_budget_spent_and_warnings_of_the_application_are_shown(run):
    live = LiveRun(run.records.path)
    for finished in run.rounds(live.watch):
        live.finish_round(finished.record, finished.metrics)
    live.warn("Round 2: the loss rises")
    warnings = live.snapshot().warnings
    assert any("of the privacy budget is spent" in text for text in warnings)
    assert "Round 2: the loss rises" in warnings


def test_of_many_clients_some_are_named(run, clock):
    live = LiveRun(run.records.path, connected=lambda: range(300), clock=clock)
    live.watch(StageBegan("Unmask", tuple(range(300)), 0))
    (stage, *_) = live.snapshot().stages
    assert (len(stage.waiting), stage.more) == (20, 280)
    clock.now += STUCK
    assert "and 280 more" in live.snapshot().warnings[0]
    assert live.snapshot().connected == 300
