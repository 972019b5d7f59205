"""The owner of a client: a policy, a way to verify who was selected, and a count of all rounds and their costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from dordis.errors import ParametersRefused
from dordis.federation import beacon as beacons
from dordis.federation.design import Design
from dordis.federation.participation import Costs, Limits, OwnerBudget, Participation, check_budget
from dordis.federation.policy import Policy, check_pieces
from dordis.federation.selection import Selection, failure_of
from dordis.federation.trainings import MemoryTrainings
from dordis.privacy.mechanisms.mechanism import Mechanism
from dordis.protocol import ClientId
from dordis.protocols.costs import RoundCost, round_cost
from dordis.protocols.parameters import Parameters
from dordis.rounds.invitation import Invite


@dataclass(frozen=True)
class Owner:
    """Decide for one client, before its data is touched, and count before anything is uploaded.

    `registry` is the root of the registry that the owner has pinned; `vrf_key` draws lots, where lots are drawn.  The
    `beacon` is needed for sparse graphs, which are drawn from its value.  A `mechanism` that does not come with dordis
    is installed by the owner, who then knows what its rounds cost.
    """

    me: ClientId
    policy: Policy
    selection: Selection
    participation: Participation
    registry: bytes = b""
    vrf_key: bytes = field(default=b"", repr=False)
    beacon: beacons.Beacon | None = None
    mechanism: type[Mechanism] | None = None
    trainings: MemoryTrainings = field(default_factory=MemoryTrainings, repr=False)

    def accept(self, invite: Invite) -> bytes | None:
        """Refuse an invitation of another registry, outside the policy, or to a round in which I am not due."""
        check_pinned(invite, self.registry)
        self.policy.check_invite(invite)
        cost = RoundCost(invite.terms.cost, 0.0, float(failure_of(self.selection)))
        check_affordable(self.participation, {(invite.info.run, invite.info.index): cost}, self.policy.budget)
        return self.selection.claim(invite, self.me, self.vrf_key)

    def take_piece(self, count: int) -> None:
        """Refuse more pieces of a model than the policy allows."""
        check_pieces(self.policy, count)

    def train(self, invite: Invite) -> None:
        """Count a training; raise if the policy allows no more before a counted participation."""
        self.trainings.begin(self.participation.count(), self.policy.trainings)

    def consent(self, parameters: Parameters, proofs: Mapping[int, bytes]) -> None:
        """Refuse a round outside the policy, or whose clients or graph were not drawn as they should be."""
        checked = ("policy", self.policy, self.mechanism)
        parameters.once(checked, lambda: self.policy.check(parameters, self.mechanism))
        cost = self._cost(parameters)
        check_affordable(self.participation, {(parameters.run, parameters.index): cost}, self.policy.budget)
        self.selection.verify(parameters, {ClientId(u): proof for u, proof in proofs.items()}, self.me)
        if parameters.degree:
            if self.beacon is None:
                raise ParametersRefused("a sparse graph is verified with the beacon: give the owner its source")
            beacons.check_beacon(parameters, self.beacon)

    def attend(self, parameters: Parameters, machine: bytes) -> None:
        """Count this round and its cost, once and for one machine; refuse it beyond the cap or the budget."""
        limits = Limits(self.policy.participations, self.policy.budget)
        self.participation.reserve(parameters.run, parameters.index, machine, self._cost(parameters), limits)

    def _cost(self, parameters: Parameters) -> RoundCost:
        failure = failure_of(self.selection)
        return parameters.once(
            ("cost", self.mechanism, failure), lambda: round_cost(parameters, self.mechanism, failure)
        )


def policy_of(design: Design, protocol: str) -> Policy:
    """Return the policy of an owner who agrees to a run as it is designed, over a protocol, and to nothing less.

    Where an owner can bound what rounds cost it, the budget of the run is its budget; elsewhere a count of rounds.
    Trainings are not bounded: only deployed clients need that.
    """
    setting, parameters = design.setting, design.example()
    return Policy(
        cohort=design.least,
        quorum=min(Fraction(1, 2), Fraction(setting.t, setting.clients)),
        colluders=setting.colluders,
        bits=parameters.bits,
        modes=frozenset({parameters.mode}),
        schemes=frozenset({parameters.scheme}),
        mechanisms=frozenset({parameters.encoding.mechanism}),
        protocols=frozenset({protocol}),
        epsilon=design.epsilon if design.counts else None,
        delta=design.delta if design.counts else None,
        without_guarantee=not design.counts,
        participations=design.cap if design.proves and not design.counts else None,
        trainings=None,
    )


def check_pinned(invite: Invite, root: bytes) -> None:
    """The run has the registry that the owner has pinned."""
    if invite.registry != root:
        raise ParametersRefused("the invitation is for another registry than the one that this owner has pinned")


def check_affordable(participation: Participation, asked: Costs, budget: OwnerBudget | None) -> None:
    """There is budget left for a round of this cost: no data is touched for one that cannot be paid."""
    if budget is not None:
        check_budget(participation.spent(asked), budget)
