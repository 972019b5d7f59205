"""An attack with canaries, whose success proves a lower bound on epsilon.

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", 2023.  Every honest client is a canary: a
coin decides whether the client has a zero update or the largest possible update, in a coordinate of its own.  The
adversary sees the sums of all rounds, subtracts the noise of the colluders, and guesses the coins about which it is
most certain.  If the mechanism is (epsilon, delta)-private, the number of correct guesses is bounded with high
probability; more correct guesses refute the claim.  This test can refute a claim of privacy, never prove it.

With records as the unit of privacy every record of an honest client is a canary: a coin decides whether the record has
a zero gradient or the largest possible gradient, in a coordinate of its own.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from dordis.errors import InputError
from dordis.privacy.encoding import Entropy, Reals
from dordis.privacy.scaling import Floats
from dordis.rounds.app import RoundInfo
from dordis.rounds.model import Numbers
from dordis.rounds.records import Places, RecordClient

Coins = npt.NDArray[np.bool_]

CONFIDENCE = 0.999
GUESSED = (Fraction(1, 50), Fraction(1, 10), Fraction(1, 3), Fraction(1))
"""Fractions of the coins that the attack guesses.

The attack makes one test for each fraction; the tests divide the error probability 1 - confidence evenly.
"""
_HALVINGS = 40


@dataclass(frozen=True)
class GuessOutcome:
    """Outcome of the attack: it guessed `guesses` of the `canaries` coins, and `correct` of these guesses were right.

    With the confidence `confidence`, the mechanism's epsilon at `delta` is at least `shown`.  If all guesses are right,
    `shown` reaches `most`, the largest value for this number of canaries.  `claimed` is the epsilon that is claimed for
    the mechanism.
    """

    canaries: int
    guesses: int
    correct: int
    shown: float
    most: float
    claimed: float
    delta: float
    confidence: float

    @property
    def refuted(self) -> bool:
        """Tell whether the attack shows a larger epsilon than the claimed one."""
        return self.shown > self.claimed


@dataclass(frozen=True)
class AttackedClaim:
    """The claimed (epsilon, delta), and the confidence with which an attack must show a larger epsilon to refute it."""

    epsilon: float
    delta: float
    confidence: float = CONFIDENCE

    def most(self, canaries: int) -> float:
        """Return the largest lower bound on epsilon that an attack on this number of canaries can show.

        Raise InputError if it is not above the claimed epsilon, because no attack could then refute the claim.
        """
        most = max(self._epsilon_shown(canaries, guesses, guesses) for guesses in _guesses(canaries))
        if most <= self.epsilon:
            raise InputError(f"{canaries} canaries show epsilon {most:.3g} at best: claim less, or use more canaries")
        return most

    def judge(self, coins: Coins, scores: Floats, middle: float) -> GuessOutcome:
        """Guess coins from the scores of their canaries; return the outcome that shows the largest epsilon.

        There is one test for each fraction in `GUESSED`.  A test with n guesses guesses the n coins whose scores are
        farthest from `middle`.  The guess is 1 if the score exceeds `middle`, else 0.
        """
        surest = np.argsort(-np.abs(scores - middle))
        right = (scores > middle) == coins
        best = (-1.0, 0, 0)
        for guesses in _guesses(coins.size):
            correct = int(np.count_nonzero(right[surest[:guesses]]))
            best = max(best, (self._epsilon_shown(coins.size, guesses, correct), guesses, correct))
        shown, guesses, correct = best
        most = self.most(coins.size)
        return GuessOutcome(coins.size, guesses, correct, shown, most, self.epsilon, self.delta, self.confidence)

    def _epsilon_shown(self, canaries: int, guesses: int, correct: int) -> float:
        each = 1 - (1 - self.confidence) / len(GUESSED)
        return lower_bound(canaries, guesses, correct, self.delta, each)


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of `correct` or more right guesses against an (epsilon, delta)-private
    mechanism.

    For m canaries, r guesses and v correct guesses, Theorem 5.2 of the cited paper gives the bound beta + 2 m delta
    alpha.  Let W be the number of right guesses if each of r guesses is independently right with the probability e^eps
    / (1 + e^eps).  Then beta = P[W >= v], and alpha is the maximum over i of P[v - i <= W < v] / i.
    """
    if not 0 <= correct <= guesses <= canaries or epsilon < 0 or not 0 <= delta <= 1:
        raise InputError("need 0 <= correct <= guesses <= canaries, epsilon of 0 or more, and delta in 0..1")
    right = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(correct - 1, guesses, right))
    if not correct or not delta:
        return beta
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))
    alpha = float((below / np.arange(1, correct + 1)).max())
    return min(1.0, beta + 2 * canaries * delta * alpha)


def lower_bound(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """Return a lower bound on a mechanism's epsilon that holds with the probability `confidence`.

    An attack guessed the coins of `guesses` of the `canaries` canaries, and `correct` of these guesses were right.

    >>> round(lower_bound(canaries=1000, guesses=100, correct=100, delta=0.0, confidence=0.95), 2)
    3.49
    """
    if not 0 < confidence < 1:
        raise InputError(f"a confidence lies between 0 and 1, not at {confidence}")

    def refuted(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) < 1 - confidence

    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def toss(count: int, entropy: Entropy) -> Coins:
    """Return `count` random bits."""
    octets = np.frombuffer(entropy(-(-count // 8)), np.uint8)
    return np.unpackbits(octets, count=count).astype(np.bool_)


def _guesses(canaries: int) -> list[int]:
    return [max(1, math.floor(part * canaries)) for part in GUESSED]


WIDTH = 16
"""Number of canary records whose gradients are computed at once."""


class CanaryRecords(RecordClient):
    """A client whose records are canaries: the coin of a record, in `coins`, decides whether its gradient is zero.

    If the coin of record i is 1, the gradient is the clip bound in coordinate `first` + i and 0 in all others.  If the
    coin is 0, the gradient is zero.
    """

    def __init__(self, first: int, coins: Coins, dim: int) -> None:
        self._first, self._coins, self._dim = first, coins, dim

    @property
    def records(self) -> int:
        """Return the number of canaries of the client."""
        return self._coins.size

    @property
    def width(self) -> int:
        """Return the number of records whose gradients are computed at once."""
        return WIDTH

    def record_gradients(self, round: RoundInfo, model: Numbers, places: Places) -> Reals:
        """Return one row for each index in `places`: the record's gradient, or zeros for the index -1 (a dummy)."""
        rows = np.zeros((places.size, self._dim))
        used = np.flatnonzero(places >= 0)
        rows[used, self._first + places[used]] = round.clip * self._coins[places[used]]
        return rows

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Raise InputError: with records as the unit of privacy a client has no single update."""
        raise InputError("canary records have no common update: use them with records as the unit of privacy")
