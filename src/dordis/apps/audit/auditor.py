"""The auditor: whole rounds with dropout and colluders, and two ways to find that they give away too much."""

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dordis.apps.audit.canaries import CONFIDENCE, AttackedClaim, Coins, Guessing, toss
from dordis.apps.audit.variance import Measured, VarianceTest, centred, variance_test
from dordis.apps.audit.witness import Witness
from dordis.errors import AuditFailed, InputError
from dordis.federation.design import Design, ProtocolKind
from dordis.federation.strategies.xnoise import XNoise
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.encoding import Entropy
from dordis.privacy.planning import Plan, Setting
from dordis.privacy.skellam import Floats
from dordis.protocol import ClientId
from dordis.protocols.distributed_dp import DistributedDP
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.secagg import SECAGG
from dordis.protocols.summing import SummingProtocol
from dordis.simulation.home import SimulatedHome
from dordis.simulation.single import home_of_updates, single_round

LEVEL = 1e-4
"""The chance, at most, that one of the tests of the noise refutes noise that is right."""
_TESTS = 3
LEAST_DIM = 1024
"""Coordinates of a toy: a test of so many samples finds noise that is wrong by a factor of 2 practically always."""


@dataclass(frozen=True)
class Departing:
    """Who leaves every round: the last `dropped` clients before they upload, the `late` ones before them after."""

    dropped: int
    late: int
    upload: str
    disclosure: str

    @classmethod
    def of(cls, protocol: SummingProtocol, dropped: int, late: int) -> "Departing":
        """Name the requests at which they leave."""
        disclosure = next(request.__name__ for request in protocol.requests if request.discloses)
        return cls(dropped, late, protocol.stages[protocol.upload], disclosure)

    def available(self, index: int, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Return everybody."""
        return frozenset(clients)

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        """Return the last ones."""
        order = sorted(clients, reverse=True)
        late = order[self.dropped : self.dropped + self.late]
        return dict.fromkeys(order[: self.dropped], self.upload) | dict.fromkeys(late, self.disclosure)


@dataclass(frozen=True)
class Audit:
    """What was measured in the rounds, and what was found.

    `noise` compares all noise in the sums with the variance that the rounds state for it, `hidden` the noise that the
    colluders do not know with the variance that privacy counts on.  `counted` is the least such variance of a round
    over the target of the plan: at least 1, or the planned epsilon is not kept.
    """

    canaries: Guessing
    noise: VarianceTest
    hidden: VarianceTest
    counted: float
    level: float = LEVEL

    @property
    def findings(self) -> tuple[str, ...]:
        """Return what is wrong, in words; nothing if all is well."""
        each = self.level / _TESTS
        wrong = {
            "the noise in the sum is smaller than the round states": self.noise.too_small < each,
            "the noise in the sum is larger than the round states": self.noise.too_large < each,
            "the noise that colluders do not know is smaller than privacy counts on": self.hidden.too_small < each,
            "privacy counts on less noise than was planned": self.counted < 1,
            f"an attack shows epsilon of at least {self.canaries.shown:.4g}, {self.canaries.claimed:.4g} is claimed": (
                self.canaries.refuted
            ),
        }
        return tuple(words for words, found in wrong.items() if found)

    def check(self) -> None:
        """Raise `AuditFailed` if something was found."""
        if self.findings:
            raise AuditFailed(self.findings)


def toy_design(
    clients: int = 300,
    rounds: int = 1,
    epsilon: float = 2.0,
    delta: float = 1e-6,
    colluders: int = 0,
    strategy: XNoise | None = None,
    protocol: SummingProtocol = SECAGG,
) -> Design:
    """Design a run in which everyone takes part in every round, and everyone has a coordinate."""
    everyone = ParticipationSchedule(clients, clients, rounds)
    dim = max(LEAST_DIM, clients)
    setting = Setting(everyone, dim=dim, delta=delta, colluders=colluders, sparse=protocol.sparse)
    kind = ProtocolKind(MALICIOUS if MALICIOUS in protocol.modes else SEMI_HONEST, protocol.sparse)
    return Design(strategy or XNoise(), setting, epsilon, kind)


def audit(
    design: Design,
    dropped: int = 0,
    late: int = 0,
    protocol: SummingProtocol = SECAGG,
    entropy: Entropy = secrets.token_bytes,
    confidence: float = CONFIDENCE,
) -> Audit:
    """Run all rounds of a design with every message, attack them, and test their noise.

    In every round the first T_C clients collude with the server, the last `dropped` ones leave before they upload, and
    `late` more after it, so that others give shares of their seeds.  All others are canaries.  The design must have a
    coordinate for every client, and all clients in every round: see `toy_design`.
    """
    plan, setting = planned(design), design.setting
    check_everyone(design)
    check_departures(design, dropped, late)
    honest = range(setting.colluders, setting.clients - dropped)
    claim = AttackedClaim(plan.epsilon, setting.given_delta, confidence)
    claim.most(len(honest))
    witness = Witness(protocol, [ClientId(u) for u in range(1, setting.colluders + 1)], design.mechanism.law)
    coins = np.zeros(setting.dim, np.bool_)
    coins[honest] = toss(len(honest), entropy)
    home = home_of_canaries(design, coins, witness.protocol, Departing.of(protocol, dropped, late), entropy)
    rounds = [attacked_round(home, witness) for _ in range(design.cap)]
    scores = np.sum([seen.total[honest] for seen in rounds], axis=0)
    return Audit(
        claim.judge(coins[honest], scores, design.cap * setting.clip / 2),
        variance_test([noise for seen in rounds for noise in seen.noise]),
        variance_test([noise for seen in rounds for noise in seen.hidden]),
        float(min(seen.charged for seen in rounds) / plan.variance),
    )


@dataclass(frozen=True, eq=False)
class AttackedRound:
    """One round as the adversary sees it: the sum in real units without its colluders' noise, and noise measured."""

    total: Floats
    noise: tuple[Measured, ...]
    hidden: tuple[Measured, ...]
    charged: Fraction


def attacked_round(home: SimulatedHome, witness: Witness) -> AttackedRound:
    """Run a round, and compare its noise with what it states."""
    result = single_round(home, watch=witness.watch).result
    seen = [witness.see(chunk, output) for chunk, output in enumerate(result.outputs)]
    parameters, bits = witness.parameters, witness.parameters.bits
    private = DistributedDP(parameters, home.job.design.mechanism)
    return AttackedRound(
        private.decode([chunk.output for chunk in seen]).total,
        tuple(Measured.of(centred(chunk.noise, bits), chunk.output.left, bits) for chunk in seen),
        tuple(Measured.of(centred(chunk.hidden, bits), chunk.output.charged, bits) for chunk in seen),
        min(output.charged for output in result.outputs),
    )


def home_of_canaries(
    design: Design, coins: Coins, protocol: SummingProtocol, leaving: Departing, entropy: Entropy
) -> SimulatedHome:
    """Put all clients into a home, each with the largest update in its coordinate if its coin says so, or zero."""

    def update(u: ClientId) -> Floats:
        canary = np.zeros(design.setting.dim)
        canary[u - 1] = design.setting.clip * coins[u - 1]
        return canary

    return home_of_updates(design, protocol, update, entropy, leaving)


def planned(design: Design) -> Plan:
    """Return the noise that a design claims."""
    if design.plan is None:
        raise InputError("an audit needs noise that the clients add together")
    return design.plan


def check_everyone(design: Design) -> None:
    """All clients are in every round, and each has a coordinate of its own."""
    setting = design.setting
    if setting.clients != setting.participation.population or setting.dim < setting.clients:
        raise InputError("an audit needs all clients in every round, and a coordinate for each")


def check_departures(design: Design, dropped: int, late: int) -> None:
    """The round survives those who leave, and an honest client is left."""
    setting = design.setting
    if not 0 <= dropped <= setting.T:
        raise InputError(f"0 to {setting.T} clients drop out, not {dropped}")
    if not 0 <= late <= setting.clients - setting.t - dropped:
        most = setting.clients - setting.t - dropped
        raise InputError(f"0 to {most} clients leave after their upload, not {late}: {setting.t} are needed")
