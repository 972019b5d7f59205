"""An audit: attack a run of the mechanism, and prove from what the attack finds out that epsilon is at least so large.

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", 2023.  Every client of the run is a canary: a
coin decides whether it adds its largest update, all of it in a coordinate of its own, or zero.  The adversary sees the
sums of all rounds and guesses the coins where it is surest.  If the mechanism keeps (epsilon, delta), no adversary is
right more often than this allows, so one that is refutes the claim.  Noise of the wrong scale, or noise that is
removed and should not be, is caught; privacy is never proved in this way.
"""

import math
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from dordis.errors import AuditFailed, InputError
from dordis.federation.design import Design, ProtocolKind
from dordis.federation.strategies.xnoise import XNoise
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.encoding import Entropy
from dordis.privacy.planning import Setting
from dordis.privacy.skellam import Floats
from dordis.protocol import ClientId
from dordis.protocols.parameters import SEMI_HONEST
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.summing import SummingProtocol
from dordis.simulation.home import SimulatedHome
from dordis.simulation.single import home_of_updates, single_round

Coins = npt.NDArray[np.bool_]

CONFIDENCE = 0.99
GUESSED = (Fraction(1, 50), Fraction(1, 10), Fraction(1, 3), Fraction(1))
"""Parts of the coins that are guessed, each a test of its own: the confidence is divided among them."""
_HALVINGS = 40


@dataclass(frozen=True)
class Audit:
    """What an attack showed: of `canaries` coins it guessed `guesses`, `correct` of them right.

    Epsilon is at least `shown`, with probability `confidence`; an attack on so many canaries shows `most` at best.
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
        """Tell whether the claim is wrong."""
        return self.shown > self.claimed

    def check(self) -> None:
        """Raise `AuditFailed` if the claim is wrong."""
        if self.refuted:
            raise AuditFailed(self.shown, self.claimed)


def toy_design(clients: int = 300, rounds: int = 1, epsilon: float = 2.0, delta: float = 1e-6) -> Design:
    """Design a run in which everyone takes part in every round, and everyone has a coordinate."""
    everyone = ParticipationSchedule(clients, clients, rounds, retries=Fraction(0))
    setting = Setting(everyone, dim=clients, delta=delta, colluders=0)
    return Design(XNoise(), setting, epsilon, ProtocolKind(SEMI_HONEST))


def audit(
    design: Design,
    dropped: int = 0,
    protocol: SummingProtocol = PLAINTEXT,
    entropy: Entropy = secrets.token_bytes,
    confidence: float = CONFIDENCE,
) -> Audit:
    """Attack all rounds of a design, in which so many clients drop out, and compare with the epsilon that it claims.

    The design must have a coordinate for every client, and all clients in every round: see `toy_design`.  Every round
    is a whole one, with every message; the plaintext protocol sums the same bits as the others, and faster.
    """
    setting = design.setting
    canaries, claimed = setting.clients - dropped, planned_epsilon(design)
    if setting.clients != setting.participation.population or setting.dim < setting.clients:
        raise InputError("an audit needs all clients in every round, and a coordinate for each")
    if not 0 <= dropped <= setting.T:
        raise InputError(f"0 to {setting.T} clients drop out, not {dropped}")
    most = max(lower_bound(canaries, r, r, setting.given_delta, _part(confidence)) for r in _guesses(canaries))
    if most <= claimed:
        raise InputError(f"{canaries} canaries show epsilon {most:.3g} at best: claim less, or take more of them")
    coins = _toss(canaries, entropy)
    home = home_of_canaries(design, coins, protocol, entropy)
    scores = sum((one_round(home, coins) for _ in range(design.cap)), np.zeros(canaries))
    return _judge(coins, scores, design, most, confidence)


def planned_epsilon(design: Design) -> float:
    """Return what a design claims."""
    if design.plan is None:
        raise InputError("an audit needs noise that the clients add together")
    return design.plan.epsilon


@dataclass(frozen=True)
class Vanishing:
    """The last clients leave every round before they upload."""

    kept: int
    stage: str

    def available(self, index: int, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Return everybody."""
        return frozenset(clients)

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        """Return the last ones."""
        return {u: self.stage for u in clients if u > self.kept}


def home_of_canaries(design: Design, coins: Coins, protocol: SummingProtocol, entropy: Entropy) -> SimulatedHome:
    """Put the canaries into a home, and those who drop out."""

    def update(u: ClientId) -> Floats:
        """Return the largest update, all of it in one coordinate, or zero."""
        canary = np.zeros(design.setting.dim)
        canary[u - 1] = design.setting.clip if u <= coins.size and coins[u - 1] else 0.0
        return canary

    leaving = Vanishing(coins.size, protocol.stages[protocol.upload])
    return home_of_updates(design, protocol, update, entropy, leaving)


def one_round(home: SimulatedHome, coins: Coins) -> Floats:
    """Return what the server sees, in real units, at the coordinates of the survivors, one for each coin."""
    return single_round(home).result.aggregate.total[: coins.size]


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return the chance, at most, of so many correct guesses against an (epsilon, delta)-private mechanism.

    Theorem 5.2: beta + 2 m delta alpha, with W binomial over r guesses that are right with probability e^eps / (1 +
    e^eps), beta = P[W >= v] and alpha the maximum over i of P[v - i <= W < v] / i.
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
    """Return an epsilon that the mechanism exceeds, or this many guesses are right with probability 1 - confidence.

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


def _judge(coins: Coins, scores: Floats, design: Design, most: float, confidence: float) -> Audit:
    """Guess as many coins as each of the tests says, the surest, and keep the test that shows most."""
    delta = design.setting.given_delta
    middle = design.cap * design.setting.clip / 2
    surest = np.argsort(-np.abs(scores - middle))
    right = (scores > middle) == coins
    best = (-1.0, 0, 0)
    for guesses in _guesses(coins.size):
        correct = int(np.count_nonzero(right[surest[:guesses]]))
        best = max(best, (lower_bound(coins.size, guesses, correct, delta, _part(confidence)), guesses, correct))
    shown, guesses, correct = best
    return Audit(coins.size, guesses, correct, shown, most, planned_epsilon(design), delta, confidence)


def _guesses(canaries: int) -> list[int]:
    return [max(1, math.floor(part * canaries)) for part in GUESSED]


def _part(confidence: float) -> float:
    """Return the confidence of each test that gives all of them together the one wanted."""
    return 1 - (1 - confidence) / len(GUESSED)


def _toss(canaries: int, entropy: Entropy) -> Coins:
    octets = np.frombuffer(entropy(-(-canaries // 8)), np.uint8)
    return np.unpackbits(octets, count=canaries).astype(np.bool_)
