"""The number of chunks, chosen during a run: the best one is found despite stragglers, and after a restart."""

import msgspec
import numpy as np
import pytest

from dordis.errors import InputError
from dordis.pipeline.executor import Span, Timeline
from dordis.pipeline.performance_model import WARMING, AutoChunks, list_trial_chunks
from dordis.pipeline.planner import plan_chunks, schedule_stages
from dordis.protocol import SETUP, Resource
from tests.case_samples import sample_cases

FIVE = [Resource(name) for name in ("c-comp", "comm", "s-comp", "comm", "c-comp")]
DIM = 1_000_000


def seconds(m):
    """Return what the stages of a round take in these tests, by number of chunks."""
    return (3 / m + 0.02 * m, 2 / m + 0.1, 4 / m + 0.05 * m, 2 / m + 0.1, 0.5 / m)


def setup(m):
    return 0.2 + 0.05 * m


def timeline(m, factors=(1.0,) * 5):
    """Return how a round goes whose stages take so many times their usual seconds."""
    planned = schedule_stages(FIVE, [a * b for a, b in zip(seconds(m), factors, strict=True)], m, setup(m))
    spans = [Span(SETUP, 0, "share", FIVE[0], 0.0, planned.setup)]
    spans += [Span(slot.chunk, slot.stage, "step", slot.resource, slot.start, slot.end) for slot in planned.slots]
    return Timeline(tuple(spans))


COMPLETIONS = plan_chunks(FIVE, seconds, setup).completions


def trained(rounds, draw=lambda: (1.0,) * 5, blocks=16, chunks=None):
    """Return the state after some rounds, and the numbers of chunks that they used."""
    chunks, used = chunks or AutoChunks(), []
    for _ in range(rounds):
        used.append(chunks.choose_chunks(DIM, blocks))
        chunks = chunks.observe(DIM, timeline(used[-1], draw()))
    return chunks, used


def test_powers_of_two_are_tried_first_and_then_the_best_is_used():
    _, used = trained(12)
    best = min(COMPLETIONS, key=COMPLETIONS.get)
    assert used[: WARMING + 4] == [1] * WARMING + [1, 2, 4, 8]
    assert COMPLETIONS[used[-1]] <= 1.03 * COMPLETIONS[best]
    assert used[-1] not in (1, 2, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_stragglers_and_noise_hardly_change_the_choice(seed):
    rng = np.random.default_rng(seed)

    def draw():
        slow = np.where(rng.random(5) < 0.05, 8.0, 1.0)
        return tuple(slow * rng.uniform(0.9, 1.1, 5))

    _, used = trained(60, draw)
    late = [COMPLETIONS[m] for m in used[30:]]
    assert np.median(late) <= 1.1 * min(COMPLETIONS.values())
    assert np.mean(late) <= 1.2 * min(COMPLETIONS.values())


def test_numbers_of_chunks_that_are_slow_are_tried_once():
    _, used = trained(50)
    best = min(COMPLETIONS.values())
    assert COMPLETIONS[1] > 1.5 * best
    assert used.count(1) == WARMING + 1
    assert all(COMPLETIONS[m] <= 1.25 * best for m in used[WARMING + 5 :])


def test_a_number_of_chunks_that_a_straggler_spoilt_is_tried_again():
    spoilt = iter([(1.0,) * 5] * (WARMING + 3) + [(1.0, 8.0, 1.0, 1.0, 1.0)])  # the first try of 8 chunks
    _, used = trained(60, lambda: next(spoilt, (1.0,) * 5))
    assert used[WARMING + 3] == 8
    assert used.count(8) > 1


def test_a_spoilt_first_round_does_not_count():
    slow = iter([(50.0,) * 5])
    _, used = trained(14, lambda: next(slow, (1.0,) * 5))
    assert COMPLETIONS[used[-1]] <= 1.03 * min(COMPLETIONS.values())


def test_more_chunks_are_not_tried_once_they_are_slower():
    def costly(m):
        return Timeline((Span(SETUP, 0, "s", FIVE[0], 0, m), *(Span(c, 0, "x", FIVE[2], m, m + 1) for c in range(m))))

    chunks, used = AutoChunks(), []
    for _ in range(30):
        used.append(chunks.choose_chunks(DIM, 16))
        chunks = chunks.observe(DIM, costly(used[-1]))
    assert max(used) == 4
    assert used.count(1) > 20


@pytest.mark.parametrize("blocks", sample_cases([1, 2, 3, 5, 16, 100], one_in=4))
def test_there_are_never_more_chunks_than_blocks(blocks):
    _, used = trained(30, blocks=blocks)
    assert max(used) <= min(blocks, 20)
    assert set(list_trial_chunks(blocks)[:3]) <= set(used)


def test_two_blocks_are_decided_by_what_was_measured():
    _, used = trained(20, blocks=2)
    assert used[-1] == 2


def test_a_run_that_is_resumed_goes_on_as_if_it_had_not_stopped():
    chunks, used = trained(7)
    stored = msgspec.json.decode(msgspec.json.encode(chunks), type=AutoChunks)
    assert stored == chunks
    again, rest = trained(10, chunks=stored)
    assert (again, used + rest) == trained(17)


@pytest.mark.slow
def test_what_is_kept_does_not_grow_for_ever():
    chunks, _ = trained(100)
    late, _ = trained(60, chunks=chunks)
    assert len(msgspec.json.encode(late)) < 1.3 * len(msgspec.json.encode(chunks))


def test_a_round_without_chunks_teaches_nothing_and_other_stages_are_refused():
    chunks = AutoChunks()
    assert chunks.observe(DIM, Timeline(())) == chunks
    chunks, _ = trained(3)
    with pytest.raises(InputError, match="stages"):
        chunks.observe(DIM, Timeline((Span(0, 0, "x", FIVE[2], 0.0, 1.0),)))


def test_no_blocks_are_refused():
    with pytest.raises(InputError, match="at least one block"):
        AutoChunks().choose_chunks(DIM, 0)


def test_rounds_of_another_length_are_tried_afresh_but_known_already():
    chunks, _ = trained(10)
    assert chunks.choose_chunks(2 * DIM, 32) == 1
    assert set(chunks.expected_seconds(2 * DIM, 32)) == set(range(1, 21))
