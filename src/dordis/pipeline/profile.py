"""How many chunks the next round uses, learnt while a run goes on (paper, section 4.2: profiling online).

At first the numbers 1, 2, 4, 8... are tried; then the number is planned from what the rounds took, and now and then
another one is tried again, for a straggler may have spoilt its first try.
"""

from collections.abc import Sequence
from statistics import median

import msgspec

from dordis.errors import InputError
from dordis.pipeline.executor import Timeline
from dordis.pipeline.performance import Profile, Sample, bounded, medians
from dordis.pipeline.planner import MOST_CHUNKS, plan
from dordis.protocol import Resource

WARMING = 1
"""First rounds that do not count: they build tables and compile kernels."""
RUNGS = 3
"""Numbers of chunks tried at least: as many as the model has terms."""
CONFIDENT = 3
"""Rounds after which the time that a number of chunks took counts more than the time predicted."""
AGAIN = 8
"""Every so many rounds another number is tried again."""
WORTH = 1.25
"""A number known to be that much slower than the best is not tried again."""
EQUAL = 1.03
"""Completions within this factor are equal: then fewer chunks are better, for each costs keys and memory."""


class AutoChunks(msgspec.Struct, frozen=True):
    """What a run knows about its own speed, as plain data.

    >>> AutoChunks().next(dim=1_000_000, blocks=16)
    1
    """

    seen: int = 0
    """Rounds observed so far."""
    resources: tuple[Resource, ...] = ()
    """Of every stage."""
    profile: Profile = Profile()
    completions: tuple[Sample, ...] = ()
    """What whole rounds took."""

    def next(self, dim: int, blocks: int) -> int:
        """Return the number of chunks for the next round, of `dim` coordinates in so many blocks: never more."""
        rungs = ladder(blocks)
        counts = self._counts(dim)
        untried = self._untried(dim, rungs)
        if untried is not None:
            return untried
        expected = self.expected(dim, blocks)
        best = min(expected.values())
        if self.seen % AGAIN == 0:
            worth = [m for m in rungs if 0 < counts.get(m, 0) < CONFIDENT or expected[m] <= WORTH * best]
            return min(worth, key=lambda m: (counts.get(m, 0), m), default=1)
        return min(m for m, seconds in expected.items() if seconds <= EQUAL * best)

    def observe(self, dim: int, timeline: Timeline) -> "AutoChunks":
        """Add a round that has ended well; of one that failed there is nothing to learn."""
        if not timeline.resources:
            return self
        if self.resources and timeline.resources != self.resources:
            raise InputError("the stages of a run do not change between its rounds")
        known = msgspec.structs.replace(self, seen=self.seen + 1, resources=timeline.resources)
        if self.seen < WARMING:
            return known
        seconds = timeline.stage_seconds
        whole = Sample(dim, len(seconds[0]), timeline.completion)
        return msgspec.structs.replace(
            known,
            profile=self.profile.observe(dim, timeline.setup_seconds, seconds),
            completions=bounded((*self.completions, whole)),
        )

    def expected(self, dim: int, blocks: int) -> dict[int, float]:
        """Return the seconds that a round should take for every number of chunks of which anything can be said.

        What was predicted is corrected by what was measured: the schedule leaves out what is between the stages.
        """
        limit = most(blocks)
        measured = {m: seconds for m, seconds in self._measured(dim).items() if m <= limit}
        predicted = self._predicted(dim, limit)
        both = measured.keys() & predicted.keys()
        ratio = median(measured[m] / predicted[m] for m in both if predicted[m]) if any(map(predicted.get, both)) else 1
        counts = self._counts(dim)
        certain = {m: seconds for m, seconds in measured.items() if counts[m] >= CONFIDENT or m not in predicted}
        return dict(sorted(({m: ratio * seconds for m, seconds in predicted.items()} | certain).items()))

    def _predicted(self, dim: int, limit: int) -> dict[int, float]:
        """Return the completions that the fitted model gives, none while it cannot be fitted."""
        try:
            model = self.profile.fit()
        except InputError:
            return {}
        seconds = {m: model.stage_seconds(dim, m) for m in range(1, limit + 1)}
        return plan(self.resources, lambda m: seconds[m], model.setup.seconds, range(1, limit + 1)).completions

    def _measured(self, dim: int) -> dict[int, float]:
        at = medians(sample for sample in self.completions if sample.dim == dim)
        return {m: seconds for (_, m), seconds in at.items()}

    def _counts(self, dim: int) -> dict[int, int]:
        tried = [sample.chunks for sample in self.completions if sample.dim == dim]
        return {m: tried.count(m) for m in tried}

    def _untried(self, dim: int, rungs: Sequence[int]) -> int | None:
        """Return the next number to try first: on and on while more chunks are faster, or too little is known."""
        measured = self._measured(dim)
        for place, m in enumerate(rungs):
            if m not in measured:
                below = [measured[lower] for lower in rungs[:place]]
                return m if place < RUNGS or below[-1] <= min(below) else None
        return None


def most(blocks: int) -> int:
    """Return the largest number of chunks that is considered for so many blocks."""
    if blocks < 1:
        raise InputError(f"a vector has at least one block, not {blocks}")
    return min(blocks, MOST_CHUNKS)


def ladder(blocks: int) -> tuple[int, ...]:
    """Return the numbers to try: powers of two as far as the blocks go, and the most where those are too few.

    >>> ladder(16), ladder(3), ladder(1)
    ((1, 2, 4, 8, 16), (1, 2, 3), (1,))
    """
    limit = most(blocks)
    powers = [1 << place for place in range(limit.bit_length())]
    return tuple(powers) if len(powers) >= RUNGS else tuple(sorted({*powers, limit}))
