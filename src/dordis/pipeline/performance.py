"""How long a stage takes: tau_s = b1 d/m + b2 m + b3 (paper, equation 3), fitted to rounds as they were timed.

Stragglers are no part of the model: of the timings at the same (d, m) the median counts, and of the medians those that
lie far from the others weigh little.
"""

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.errors import InputError

Matrix = npt.NDArray[np.float64]

KEPT = 32
"""Timings that a profile keeps of each stage at each (d, m): the latest."""
POINTS = 64
"""Different (d, m) that a profile keeps: those seen last."""
PASSES = 50
"""Passes of re-weighting: from least squares to least absolute deviations."""
EXACT = 1e-6
"""Relative deviation below which a timing counts as met."""
INSTANT = 1e-9
"""Seconds below which nothing is told apart."""


class Sample(msgspec.Struct, frozen=True):
    """One timing: stage or set-up, in a round of d coordinates in m chunks."""

    dim: int
    chunks: int
    seconds: float


class StageModel(msgspec.Struct, frozen=True):
    """Seconds that a stage takes for one chunk; `error` is the mean relative deviation from what it was fitted to."""

    partition: float
    """b1: seconds per coordinate of the chunk."""
    intervention: float
    """b2: seconds per chunk in the round, for they disturb each other."""
    constant: float
    """b3: seconds whatever the size, such as signatures and shares."""
    error: float = 0.0

    def seconds(self, dim: int, m: int) -> float:
        """Return tau(d, m).

        >>> StageModel(partition=1e-6, intervention=0.01, constant=0.5).seconds(dim=1_000_000, m=4)
        0.79
        """
        return self.partition * dim / m + self.intervention * m + self.constant


class SetupModel(msgspec.Struct, frozen=True):
    """Seconds of the set-up, once a round: keys and shares are made for every chunk."""

    constant: float
    per_chunk: float
    error: float = 0.0

    def seconds(self, m: int) -> float:
        """Return a + b m."""
        return self.constant + self.per_chunk * m


class PerformanceModel(msgspec.Struct, frozen=True):
    """How long the set-up and every stage take."""

    setup: SetupModel
    stages: tuple[StageModel, ...]

    def stage_seconds(self, dim: int, m: int) -> tuple[float, ...]:
        """Return the seconds of every stage for one of m chunks of a vector of d coordinates."""
        return tuple(stage.seconds(dim, m) for stage in self.stages)

    @property
    def error(self) -> float:
        """Return the relative error of the worst fit."""
        return max([self.setup.error, *(stage.error for stage in self.stages)])


class Profile(msgspec.Struct, frozen=True):
    """The timings of past rounds, of a micro-benchmark or of training itself; bounded, so that it can grow for ever."""

    setup: tuple[Sample, ...] = ()
    stages: tuple[tuple[Sample, ...], ...] = ()

    def observe(self, dim: int, setup: float, stages: Sequence[Sequence[float]]) -> "Profile":
        """Add a round: the seconds of its set-up, and of every stage for every chunk."""
        known = self.stages or ((),) * len(stages)
        if len(known) != len(stages) or len({len(chunks) for chunks in stages}) != 1 or not stages[0]:
            raise InputError(f"a round of this profile has {len(known)} stages, each timed for the same chunks")
        m = len(stages[0])
        return Profile(
            bounded((*self.setup, Sample(dim, m, setup))),
            tuple(
                bounded((*past, *(Sample(dim, m, seconds) for seconds in chunks)))
                for past, chunks in zip(known, stages, strict=True)
            ),
        )

    def fit(self) -> PerformanceModel:
        """Fit all models; raise `InputError` while there are too few different (d, m) to tell the terms apart."""
        return PerformanceModel(fit_setup(self.setup), tuple(fit(samples) for samples in self.stages))


def bounded(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return the latest samples of each (d, m), and only the (d, m) seen last."""
    kept: list[Sample] = []
    counts: dict[tuple[int, int], int] = {}
    for sample in reversed(samples):
        point = (sample.dim, sample.chunks)
        if counts.get(point, 0) < KEPT and (point in counts or len(counts) < POINTS):
            counts[point] = counts.get(point, 0) + 1
            kept.append(sample)
    return tuple(reversed(kept))


def fit(samples: Iterable[Sample]) -> StageModel:
    """Fit a stage; no coefficient is negative.

    >>> model = fit(Sample(d, m, 1e-6 * d / m + 0.5) for d in (10**5, 10**6) for m in (1, 2, 4))
    >>> round(model.seconds(10**6, m=8), 3)
    0.625
    """
    points = medians(samples)
    terms = np.array([(d / m, m, 1.0) for d, m in points], dtype=np.float64).reshape(-1, 3)
    (b1, b2, b3), error = _fit(terms, list(points.values()))
    return StageModel(b1, b2, b3, error)


def fit_setup(samples: Iterable[Sample]) -> SetupModel:
    """Fit the set-up, whose cost does not depend on d."""
    points = medians(samples)
    terms = np.array([(1.0, m) for _, m in points], dtype=np.float64).reshape(-1, 2)
    (a, b), error = _fit(terms, list(points.values()))
    return SetupModel(a, b, error)


def medians(samples: Iterable[Sample]) -> dict[tuple[int, int], float]:
    """Return the median seconds at each (d, m)."""
    points: dict[tuple[int, int], list[float]] = {}
    for sample in samples:
        points.setdefault((sample.dim, sample.chunks), []).append(sample.seconds)
    return {point: median(seconds) for point, seconds in points.items()}


def _fit(terms: Matrix, seconds: Sequence[float]) -> tuple[list[float], float]:
    """Return non-negative coefficients of least absolute relative deviation, and the mean of that deviation."""
    target = np.array(seconds, dtype=np.float64)
    if (target < 0).any() or not np.isfinite(target).all():
        raise InputError("seconds are finite and not negative")
    scale = terms.max(axis=0, initial=np.finfo(np.float64).tiny)
    scaled = terms / scale
    if np.linalg.matrix_rank(scaled) < terms.shape[1]:
        raise InputError(f"time rounds of more different sizes and numbers of chunks: {len(target)} are too few")
    size = np.maximum(target, max(target.max() * EXACT, INSTANT))  # deviations count relative to it
    from scipy.optimize import nnls  # takes longer to import than all else that a client needs

    weights = np.ones_like(target)
    coefficients, deviation = np.zeros(terms.shape[1]), np.zeros_like(target)
    for _ in range(PASSES):
        row = weights / size
        coefficients, _ = nnls(scaled * row[:, None], target * row)
        deviation = np.abs(scaled @ coefficients - target) / size
        weights = 1 / np.sqrt(np.maximum(deviation, EXACT))
    return (coefficients / scale).tolist(), float(deviation.mean())
