"""A model of stage times, fitted to earlier rounds, and the choice of the number of chunks (paper, section 4.2).

With d coordinates in m chunks, a stage s takes tau_s = b1 d/m + b2 m + b3 seconds for each chunk (paper, equation 3).
Stragglers have little influence: the fit uses the median of the timings at the same (d, m), and minimises absolute
deviations.  A run first tries 1, 2, 4, 8... chunks, and then chooses the number of chunks by the timings.  From time to
time it tries another number again, in case a straggler slowed down the earlier round with that number.

A vector is encoded in blocks of equal length, and a chunk has whole blocks: there are at most as many chunks as blocks.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.pipeline.executor import Timeline
from dordis.pipeline.planner import MOST_CHUNKS, plan_chunks
from dordis.protocol import Resource

Matrix = npt.NDArray[np.float64]

KEPT = 32
"""Number of latest timings that a profile keeps of each stage, for each pair (d, m) of coordinates and chunks."""
POINTS = 64
"""Number of different pairs (d, m) of coordinates and chunks that a profile keeps: the pairs observed last."""
PASSES = 50
"""Iterations of re-weighted least squares, by which the fit approaches least absolute deviations."""
EXACT = 1e-6
"""In the fit, relative deviations below this value count as this value.

A relative deviation is a deviation divided by the duration, or by `EXACT` times the longest duration if this is more.
"""
INSTANT = 1e-9
"""In the fit, deviations are divided by at least this duration, in seconds."""


class Sample(msgspec.Struct, frozen=True):
    """One timing of a stage or of the set-up, in a round with d coordinates in m chunks."""

    dim: int
    chunks: int
    seconds: float


class StageModel(msgspec.Struct, frozen=True):
    """A model of the seconds of a stage for one chunk; `error` is the mean relative deviation of the timings."""

    partition: float
    """b1: seconds per coordinate of the chunk."""
    intervention: float
    """b2: seconds per chunk of the round, because chunks slow each other down."""
    constant: float
    """b3: seconds that do not depend on d or m, such as those of signatures and shares."""
    error: float = 0.0

    def seconds(self, dim: int, m: int) -> float:
        """Return the modelled seconds of the stage for one chunk, with `dim` coordinates in m chunks.

        >>> StageModel(partition=1e-6, intervention=0.01, constant=0.5).seconds(dim=1_000_000, m=4)
        0.79
        """
        return self.partition * dim / m + self.intervention * m + self.constant


class SetupModel(msgspec.Struct, frozen=True):
    """A model of the seconds of the set-up, which makes keys and shares for m chunks: `constant` + `per_chunk` * m."""

    constant: float
    per_chunk: float
    error: float = 0.0

    def seconds(self, m: int) -> float:
        """Return the modelled seconds of the set-up with m chunks."""
        return self.constant + self.per_chunk * m


class PerformanceModel(msgspec.Struct, frozen=True):
    """The fitted models of the duration of the set-up and of every stage."""

    setup: SetupModel
    stages: tuple[StageModel, ...]

    def stage_seconds(self, dim: int, m: int) -> tuple[float, ...]:
        """Return the modelled seconds of every stage for one chunk, with `dim` coordinates in m chunks."""
        return tuple(stage.seconds(dim, m) for stage in self.stages)

    @property
    def error(self) -> float:
        """Return the largest mean relative deviation (`error`) among the fits of the set-up and of the stages."""
        return max([self.setup.error, *(stage.error for stage in self.stages)])


class Profile(msgspec.Struct, frozen=True):
    """Timings of earlier rounds or of a benchmark; old timings are dropped, so that a profile stays small."""

    setup: tuple[Sample, ...] = ()
    stages: tuple[tuple[Sample, ...], ...] = ()

    def observe(self, dim: int, setup: float, stages: Sequence[Sequence[float]]) -> "Profile":
        """Return the profile with the timings of one more round, in seconds.

        `setup` is the time of the set-up; `stages` has for each stage its time in each chunk.
        """
        known = self.stages or ((),) * len(stages)
        if len(known) != len(stages) or len({len(chunks) for chunks in stages}) != 1 or not stages[0]:
            raise InputError(f"a round of this profile has {len(known)} stages, each timed for the same chunks")
        m = len(stages[0])
        return Profile(
            keep_latest((*self.setup, Sample(dim, m, setup))),
            tuple(
                keep_latest((*past, *(Sample(dim, m, seconds) for seconds in chunks)))
                for past, chunks in zip(known, stages, strict=True)
            ),
        )

    def fit(self) -> PerformanceModel:
        """Return the model fitted to the timings; raise `InputError` if too few pairs (dim, chunks) were timed."""
        return PerformanceModel(fit_setup(self.setup), tuple(fit_stage(samples) for samples in self.stages))


def keep_latest(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return the latest `KEPT` samples of each of the latest `POINTS` pairs (d, m) of coordinates and chunks."""
    kept: list[Sample] = []
    counts: dict[tuple[int, int], int] = {}
    for sample in reversed(samples):
        point = (sample.dim, sample.chunks)
        if counts.get(point, 0) < KEPT and (point in counts or len(counts) < POINTS):
            counts[point] = counts.get(point, 0) + 1
            kept.append(sample)
    return tuple(reversed(kept))


def fit_stage(samples: Iterable[Sample]) -> StageModel:
    """Return the fitted model of a stage; no coefficient is negative.

    >>> model = fit_stage(Sample(d, m, 1e-6 * d / m + 0.5) for d in (10**5, 10**6) for m in (1, 2, 4))
    >>> round(model.seconds(10**6, m=8), 3)
    0.625
    """
    points = median_seconds(samples)
    terms = np.array([(d / m, m, 1.0) for d, m in points], dtype=np.float64).reshape(-1, 3)
    (b1, b2, b3), error = _fit(terms, list(points.values()))
    return StageModel(b1, b2, b3, error)


def fit_setup(samples: Iterable[Sample]) -> SetupModel:
    """Return the fitted model of the set-up, whose time does not depend on the number of coordinates."""
    points = median_seconds(samples)
    terms = np.array([(1.0, m) for _, m in points], dtype=np.float64).reshape(-1, 2)
    (a, b), error = _fit(terms, list(points.values()))
    return SetupModel(a, b, error)


def median_seconds(samples: Iterable[Sample]) -> dict[tuple[int, int], float]:
    """Return the median seconds of the samples, by pair (d, m) of coordinates and chunks."""
    points: dict[tuple[int, int], list[float]] = {}
    for sample in samples:
        points.setdefault((sample.dim, sample.chunks), []).append(sample.seconds)
    return {point: median(seconds) for point, seconds in points.items()}


def _fit(terms: Matrix, seconds: Sequence[float]) -> tuple[list[float], float]:
    """Return the non-negative coefficients of the columns of `terms` that fit `seconds`, and their mean deviation.

    `terms` has one row for each timing.  Deviations are relative to `seconds`; their sum is the least possible.
    """
    target = np.array(seconds, dtype=np.float64)
    if (target < 0).any() or not np.isfinite(target).all():
        raise InputError("seconds are finite and not negative")
    scale = terms.max(axis=0, initial=np.finfo(np.float64).tiny)
    scaled = terms / scale
    if np.linalg.matrix_rank(scaled) < terms.shape[1]:
        raise InputError(f"time rounds of more different sizes and numbers of chunks: {len(target)} are too few")
    size = np.maximum(target, max(target.max() * EXACT, INSTANT))  # deviations are relative to this
    from scipy.optimize import nnls  # imported here: slow to import, and clients do not need it

    weights = np.ones_like(target)
    coefficients, deviation = np.zeros(terms.shape[1]), np.zeros_like(target)
    for _ in range(PASSES):
        row = weights / size
        coefficients, _ = nnls(scaled * row[:, None], target * row)
        deviation = np.abs(scaled @ coefficients - target) / size
        weights = 1 / np.sqrt(np.maximum(deviation, EXACT))
    return (coefficients / scale).tolist(), float(deviation.mean())


WARMING = 1
"""Number of first rounds whose timings are ignored, because they also build tables and compile kernels."""
RUNGS = 3
"""Least number of different chunk counts to try: as many as the model of a stage has coefficients."""
CONFIDENT = 3
"""Number of rounds with the same chunk count after which their measured time replaces the predicted one."""
AGAIN = 8
"""Interval, in rounds, at which another number of chunks is tried again."""
WORTH = 1.25
"""A number of chunks is not tried again if its expected time is above the shortest expected time times this factor.

Until the number was tried `CONFIDENT` times, its expected time is predicted, so that one straggler does not rule it
out; a number without a prediction is not ruled out at all until then."""
EQUAL = 1.03
"""Times within this factor count as equal; then fewer chunks are better, because each chunk needs keys and memory."""


class AutoChunks(msgspec.Struct, frozen=True):
    """The timings of a run so far, from which the number of chunks of the next round is chosen.

    >>> AutoChunks().choose_chunks(dim=1_000_000, blocks=16)
    1
    """

    seen: int = 0
    """Rounds observed so far."""
    resources: tuple[Resource, ...] = ()
    """The resource of every stage."""
    profile: Profile = Profile()
    completions: tuple[Sample, ...] = ()
    """Timings of whole rounds."""

    def choose_chunks(self, dim: int, blocks: int) -> int:
        """Return the number of chunks of the next round, for `dim` coordinates in `blocks` blocks; at most `blocks`."""
        rungs = list_trial_chunks(blocks)
        counts = self._count_trials(dim)
        untried = self._find_untried(dim, rungs)
        if untried is not None:
            return untried
        expected = self.expected_seconds(dim, blocks)
        best = min(expected.values())
        if self.seen % AGAIN == 0:
            known = self._predict_seconds(dim, most_chunks(blocks)).keys()
            few = {m for m in rungs if m not in known and counts.get(m, 0) < CONFIDENT}
            worth = [m for m in rungs if m in few or expected.get(m, math.inf) <= WORTH * best]
            return min(worth, key=lambda m: (counts.get(m, 0), m), default=1)
        return min(m for m, seconds in expected.items() if seconds <= EQUAL * best)

    def observe(self, dim: int, timeline: Timeline) -> "AutoChunks":
        """Return these timings with those of one more round that ended successfully."""
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
            completions=keep_latest((*self.completions, whole)),
        )

    def expected_seconds(self, dim: int, blocks: int) -> dict[int, float]:
        """Return the expected seconds of a round with `dim` coordinates in `blocks` blocks, by number of chunks.

        The seconds are measured, or predicted for numbers of chunks with few measurements.  Predictions are
        scaled to the measurements, because schedules omit the time between stages.
        """
        limit = most_chunks(blocks)
        measured = {m: seconds for m, seconds in self._measured_seconds(dim).items() if m <= limit}
        predicted = self._predict_seconds(dim, limit)
        both = measured.keys() & predicted.keys()
        ratio = median(measured[m] / predicted[m] for m in both if predicted[m]) if any(map(predicted.get, both)) else 1
        counts = self._count_trials(dim)
        certain = {m: seconds for m, seconds in measured.items() if counts[m] >= CONFIDENT or m not in predicted}
        return dict(sorted(({m: ratio * seconds for m, seconds in predicted.items()} | certain).items()))

    def _predict_seconds(self, dim: int, limit: int) -> dict[int, float]:
        """Return the predicted seconds of a round with 1 to `limit` chunks; empty if the model cannot be fitted yet."""
        try:
            model = self.profile.fit()
        except InputError:
            return {}
        seconds = {m: model.stage_seconds(dim, m) for m in range(1, limit + 1)}
        return plan_chunks(self.resources, lambda m: seconds[m], model.setup.seconds, range(1, limit + 1)).completions

    def _measured_seconds(self, dim: int) -> dict[int, float]:
        at = median_seconds(sample for sample in self.completions if sample.dim == dim)
        return {m: seconds for (_, m), seconds in at.items()}

    def _count_trials(self, dim: int) -> dict[int, int]:
        tried = [sample.chunks for sample in self.completions if sample.dim == dim]
        return {m: tried.count(m) for m in tried}

    def _find_untried(self, dim: int, rungs: Sequence[int]) -> int | None:
        """Return the first number of chunks in `rungs` (ascending) that was not tried; None if it is not worth a try.

        The first `RUNGS` numbers are always tried.  A later number is tried only if the number before it was the
        fastest so far.
        """
        measured = self._measured_seconds(dim)
        for place, m in enumerate(rungs):
            if m not in measured:
                below = [measured[lower] for lower in rungs[:place]]
                return m if place < RUNGS or below[-1] <= min(below) else None
        return None


def most_chunks(blocks: int) -> int:
    """Return the largest number of chunks considered for a vector of `blocks` blocks; a chunk has whole blocks."""
    if blocks < 1:
        raise InputError(f"a vector has at least one block, not {blocks}")
    return min(blocks, MOST_CHUNKS)


def list_trial_chunks(blocks: int) -> tuple[int, ...]:
    """Return the numbers of chunks to try: powers of two, and the largest possible one if those are fewer than `RUNGS`.

    >>> list_trial_chunks(16), list_trial_chunks(3), list_trial_chunks(1)
    ((1, 2, 4, 8, 16), (1, 2, 3), (1,))
    """
    limit = most_chunks(blocks)
    powers = [1 << place for place in range(limit.bit_length())]
    return tuple(powers) if len(powers) >= RUNGS else tuple(sorted({*powers, limit}))
