"""From noisy sums of counts to probabilities: posterior means under priors that say what language is like.

Noise is about Gaussian and of a known deviation, so that a posterior mean is a sum over a grid of values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dordis.privacy.skellam import Floats

_GRID = 200
"""Frequencies that a word may have under the Zipf prior, from the first rank to the last."""
_ITERATIONS = 6
_NODES = np.linspace(-5.0, 5.0, 41)
"""Standard normal deviates at which a log-normal prior is summed."""


@dataclass(frozen=True, eq=False)
class Observed:
    """A noisy sum, in proportion to weighted probabilities by an unknown factor; `deviation` is that of its noise."""

    total: Floats = field(repr=False)
    deviation: float
    weights: Floats = field(repr=False)

    def factor(self, expected: Floats) -> float:
        """Return the factor by least squares, given what the total is in proportion to; at least one deviation."""
        return max(float(self.total @ expected) / float(expected @ expected), self.deviation)


@dataclass(frozen=True)
class Zipf:
    """The word of rank r has a probability in proportion to (r + shift)^-exponent; nobody knows which word that is."""

    exponent: float = 1.4
    shift: float = 6.0

    def grid(self, size: int) -> tuple[Floats, Floats]:
        """Return probabilities that one of `size` words may have, and the logarithms of their chances."""
        edges = np.exp(np.linspace(0.0, np.log(size), _GRID + 1))
        words, ranks = np.diff(edges), np.sqrt(edges[1:] * edges[:-1])
        probabilities = (ranks + self.shift) ** -self.exponent
        return probabilities / (words @ probabilities), np.log(words / words.sum())


def word_probabilities(seen: Sequence[Observed], prior: Zipf) -> Floats:
    """Return the posterior mean of every word's probability; a word of weight 0 in all sums has none.

    The factors of the sums follow from the probabilities, and these from the factors, in turn.
    """
    x, chances = prior.grid(seen[0].total.size)
    possible = np.any([sum_.weights > 0 for sum_ in seen], axis=0)
    factors = [max(float(seen[0].total.sum()), seen[0].deviation)]
    probabilities: Floats = np.zeros_like(seen[0].total)
    for _ in range(_ITERATIONS):
        likelihood = chances + sum(
            -0.5 * ((sum_.total[:, None] - factor * sum_.weights[:, None] * x) / sum_.deviation) ** 2
            for sum_, factor in zip(seen, factors, strict=False)  # at first the factor of the first sum alone is known
        )
        probabilities = np.where(possible, _mean(likelihood, x), 0.0)
        probabilities /= probabilities.sum()
        factors = [sum_.factor(sum_.weights * probabilities) for sum_ in seen]
    return probabilities


def lifts(seen: Observed, independent: Floats, spread: float) -> Floats:
    """Return by how much every pair is more frequent than if its words were independent: posterior means.

    `independent` are the products of the words' probabilities.  The logarithm of a lift is normal with this spread, and
    the mean lift is 1 before anything is seen; all pairs together are as frequent as independent words.
    """
    expected = independent * seen.weights
    with np.errstate(divide="ignore", invalid="ignore"):
        unweighted = np.where(seen.weights > 0, seen.total / seen.weights, 0.0)
    factor = max(float(unweighted.sum() / independent.sum()), seen.deviation)
    x = np.exp(spread * _NODES - spread**2 / 2)
    likelihood = -0.5 * _NODES**2 - 0.5 * ((seen.total[:, None] - factor * expected[:, None] * x) / seen.deviation) ** 2
    return _mean(likelihood, x)


def _mean(log_weights: Floats, values: Floats) -> Floats:
    """Return the mean of values under weights that are given by their logarithms, row by row."""
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    mean: Floats = weights @ values / weights.sum(axis=1)
    return mean
