"""Local training: gradient descent on one client's samples, and how far it went."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from dordis.apps.learning.data import Labels
from dordis.apps.learning.partition import Indices
from dordis.errors import InputError
from dordis.privacy.skellam import Floats

if TYPE_CHECKING:
    from dordis.apps.learning.models import Model, Slope

BETA2, TINY = 0.999, 1e-8
"""Of AdamW: the weight of the past in the second moment, and what keeps a step finite."""

_SMOOTHING = 0.01
"""Samples that every label is given on top, so that one that a client lacks has a logarithm."""


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Say how a client trains; a `batch` of 0 is all of its samples at once.

    `method` is "sgd" or "adamw", whose first moment has the weight `momentum`; `decay` is its decay of weights.  With a
    `limit` a client takes no more samples in a round than that, drawn anew each time.
    `proximal` is mu of FedProx: it holds the client near the model of the round.  `balance` takes the client's own
    frequencies of labels out of the loss, from not at all, 0, to wholly, 1: the client then learns what tells its
    labels apart rather than how common they are with it (Menon et al., "Long-tail learning via logit adjustment",
    2021).
    """

    epochs: int = 5
    batch: int = 0
    lr: float = 4.0
    momentum: float = 0.0
    proximal: float = 0.0
    balance: float = 0.5
    method: Literal["sgd", "adamw"] = "sgd"
    decay: float = 0.0
    limit: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 0:
            raise InputError("training takes an epoch or more, and batches of a sample or more (0: all at once)")
        if not 0 < self.lr < math.inf or not 0 <= self.proximal < math.inf:
            raise InputError("the learning rate is positive, the proximal term 0 or more, and both are finite")
        if not 0 <= self.momentum < 1 or not 0 <= self.balance <= 1:
            raise InputError("the momentum lies in 0..1, below 1, and the balance in 0..1")
        if not 0 <= self.decay < math.inf or self.limit < 0:
            raise InputError("the decay of weights is 0 or more, and so is the limit on samples (0: all)")

    def takes_all(self, samples: int) -> bool:
        """Say whether every step takes all of so many samples."""
        return not 0 < self.batch < samples and not 0 < self.limit < samples


def train(
    model: "Model", start: Floats, x: Floats, y: Labels, classes: int, how: Training, seed: Sequence[int]
) -> Floats:
    """Return the update of a client: new parameters less `start`; zeros if it has no samples.

    The order of samples comes from the seed, whole numbers from 0 on; all else is determined.
    """
    update, step = np.zeros(start.size), steps_of(how)
    offset = label_offset(y, classes, how.balance)
    with np.errstate(over="ignore", invalid="ignore"):  # what diverges is refused below
        for slope_at in slopes(model, x, y, offset, how, seed):
            slope = slope_at(start + update)
            if how.proximal:
                slope += how.proximal * update
            update += step(slope, start + update)
    check_converged(update, how)
    return update


def check_converged(update: Floats, how: Training) -> None:
    """An update is finite, unless training diverged."""
    if not np.isfinite(update).all():
        raise InputError(f"training diverged at a learning rate of {how.lr:g}: pass a lower one")


def steps_of(how: Training) -> Callable[[Floats, Floats], Floats]:
    """Return what makes the next step of a slope and the parameters: SGD with momentum, or AdamW."""
    first: Floats | float = 0.0
    second: Floats | float = 0.0
    count = 0

    def sgd(slope: Floats, at: Floats) -> Floats:
        nonlocal first
        slope = slope + how.decay * at if how.decay else slope
        step: Floats = how.momentum * first + slope if how.momentum else slope
        first = step
        return -how.lr * step

    def adamw(slope: Floats, at: Floats) -> Floats:
        nonlocal first, second, count
        count += 1
        first = how.momentum * first + (1 - how.momentum) * slope
        second = BETA2 * second + (1 - BETA2) * slope**2
        scaled = first / (1 - how.momentum**count) / (np.sqrt(second / (1 - BETA2**count)) + TINY)
        step: Floats = -how.lr * (scaled + how.decay * at)
        return step

    return adamw if how.method == "adamw" else sgd


def slopes(
    model: "Model", x: Floats, y: Labels, offset: Floats, how: Training, seed: Sequence[int]
) -> "Iterator[Slope]":
    """Return the slope that each step follows, prepared once if all steps take the same samples."""
    if len(y) and how.takes_all(len(y)):
        return repeat(model.slope(x, y, offset), how.epochs)
    return (model.slope(x[batch], y[batch], offset) for batch in batches(len(y), how, seed))


def batches(samples: int, how: Training, seed: Sequence[int]) -> Iterator[Indices]:
    """Yield which samples each step takes: in every epoch each sample once, of those within the limit."""
    if not samples:
        return
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(samples)[: how.limit] if 0 < how.limit < samples else np.arange(samples)
    size = how.batch or chosen.size
    for _ in range(how.epochs):
        yield from np.split(rng.permutation(chosen), range(size, chosen.size, size))


def label_offset(y: Labels, classes: int, balance: float) -> Floats:
    """Return what is added to the scores in the loss: `balance` times the logarithm of the labels' frequencies."""
    if not balance or y.ndim != 1 or y.dtype.kind not in "iu":
        return np.zeros(classes)
    counts = np.bincount(y, minlength=classes) + _SMOOTHING
    offset: Floats = balance * np.log(counts / counts.sum())
    return offset
