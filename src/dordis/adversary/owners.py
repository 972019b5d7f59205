"""What the client's owner does not allow: parameters outside the policy, and one participation too many."""

from collections.abc import Collection
from fractions import Fraction
from typing import Any

from dordis.adversary import names
from dordis.adversary.attack import Attack
from dordis.adversary.cast import IDS, RUN, agreed
from dordis.adversary.session import Session, Trail
from dordis.federation.beacon import Beacon
from dordis.federation.owner import Owner
from dordis.federation.participation import MemoryParticipation, Participation
from dordis.federation.policy import Policy
from dordis.federation.selection import NO_PROOFS, Proofs, Selected, Selection
from dordis.privacy.xnoise import Scheme
from dordis.protocol import ClientId
from dordis.protocols.parameters import SEMI_HONEST, Encoding, Parameters

PERMISSIVE = Policy(mechanisms=frozenset({"none"}))
NEW_RUN = bytes(reversed(RUN))


class AnySelection:
    """A strategy that takes every U as it comes: here the selection is not what is attacked."""

    def select(self, index: int, available: Collection[ClientId], proofs: Proofs = NO_PROOFS) -> Selected:
        """Take everyone."""
        return Selected(tuple(sorted(available)))

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Refuse nothing."""


def careful(
    me: ClientId = IDS[0],
    policy: Policy = PERMISSIVE,
    selection: Selection | None = None,
    participation: Participation | None = None,
    beacon: Beacon | None = None,
) -> Owner:
    """Return an owner of the real kind, who insists on what is given."""
    return Owner(me, policy, selection or AnySelection(), participation or MemoryParticipation(), beacon)


class OutsidePolicy(Attack):
    """The parameters keep all rules, and break one line of the owner's policy."""

    def __init__(self, line: str, text: str, check: str, policy: Policy, **changes: Any) -> None:
        self.name = f"outside the owner's policy: {line}"
        self.text = text
        self.checks = (names.POLICY + check,)
        self._policy, self._changes = policy, changes

    def attempt(self, graph: str, trail: Trail) -> str:
        """Ask the first client for its keys."""
        session = Session(agreed(graph, **self._changes), trail, owner=careful(policy=self._policy))
        session.advertise(IDS[:1])
        return "the victim entered a round that its owner forbids"


def allowing(**lines: Any) -> Policy:
    """Return a policy that allows everything here but for these lines."""
    return Policy(**({"mechanisms": frozenset({"none"})} | lines))


POLICY_LINES: tuple[Attack, ...] = (
    OutsidePolicy(
        "modes", "The server is to be trusted more than the owner does.", "check_mode", PERMISSIVE, mode=SEMI_HONEST
    ),
    OutsidePolicy("cohort", "The cohort is too small to hide in.", "check_cohort", allowing(cohort=9)),
    OutsidePolicy("quorum", "Too few clients need to answer.", "check_quorum", allowing(quorum=Fraction(3, 4))),
    OutsidePolicy("colluders", "The noise makes up for too few colluders.", "check_colluders", allowing(colluders=2)),
    OutsidePolicy("bits", "The upload is larger than the owner pays for.", "check_bits", allowing(bits=15)),
    OutsidePolicy("mechanisms", "Updates are encoded in a way that nobody accounted for.", "check_mechanism", Policy()),
    OutsidePolicy(
        "schemes", "Noise is divided so that dropouts take it away.", "check_scheme", PERMISSIVE, scheme=Scheme.ORIG
    ),
    OutsidePolicy(
        "variance", "There is less noise than the owner asks for.", "check_variance", allowing(variance=Fraction(65))
    ),
    OutsidePolicy(
        "noise",
        "There is less noise than one client's sensitivity asks for.",
        "check_noise",
        allowing(noise=Fraction(2)),
        encoding=Encoding(sensitivity=64),
    ),
)


class BeyondTheCap(Attack):
    """The owner allows one round, and the client has taken part in one."""

    name = "a participation beyond the cap"
    text = "The victim has taken part as often as its owner allows and is asked once more: privacy is spent twice."
    checks = (names.CAP,)
    run_id = RUN

    def attempt(self, graph: str, trail: Trail) -> str:
        """Take part in one more round."""
        mine = MemoryParticipation(cap=1)
        mine.reserve(RUN, 6)
        session = Session(agreed(graph, run=self.run_id), trail, owner=careful(participation=mine))
        session.set_up()
        session.upload(IDS[:1])
        return "the victim uploaded once more than its owner allows"


class HiddenByAnotherRun(BeyondTheCap):
    """The same, in what calls itself another run."""

    name = "a participation hidden by a new run id"
    text = "The server begins a new run, in which the victim seems not to have taken part: privacy is spent twice."
    run_id = NEW_RUN


class SameRoundAgain(Attack):
    """A round id comes a second time, to a client that has lost its state."""

    name = "the same round id again"
    text = "The round that the victim has counted is run once more: a second upload, with fresh noise, for nothing."
    checks = (names.MACHINE,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Run the round twice, with the same count of participations and a fresh client."""
        mine = MemoryParticipation(cap=1)
        for _ in range(2):
            session = Session(agreed(graph), trail, owner=careful(participation=mine))
            session.set_up()
            session.upload(IDS[:1])
        return f"the victim uploaded twice and counted {mine.count()}"


class BeyondThePolicysCap(Attack):
    """The policy names a cap, and the count of participations was made without one."""

    name = "a participation beyond the policy's cap"
    text = "The owner wrote a cap into the policy; the victim is asked for one round more than that."
    checks = (names.CAP,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Take part in two rounds where the policy allows one."""
        owner = careful(policy=allowing(participations=1), participation=MemoryParticipation())
        for index in range(2):
            session = Session(agreed(graph, index=index), trail, owner=owner)
            session.set_up()
            session.upload(IDS[:1])
        return "the victim uploaded more often than its owner's policy allows"


ATTACKS: tuple[Attack, ...] = (
    *POLICY_LINES,
    BeyondTheCap(),
    HiddenByAnotherRun(),
    SameRoundAgain(),
    BeyondThePolicysCap(),
)
