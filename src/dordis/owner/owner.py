"""The owner of a client: its policy, the verification of selections, and its participation count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dordis.errors import ParametersRefused
from dordis.owner.participation import Costs, Limits, MemoryTrainings, OwnerBudget, Participation, check_budget
from dordis.owner.policy import Policy, check_pieces
from dordis.owner.receipts import KeptReceipts
from dordis.privacy.mechanisms import Mechanism
from dordis.protocol import ClientId
from dordis.protocols.costs import RoundCost, round_cost
from dordis.protocols.parameters import Parameters
from dordis.rounds.invitation import Invite
from dordis.selection import beacon as beacons
from dordis.selection.selection import Selection, draw_failure_probability


@dataclass(frozen=True)
class Owner:
    """Decides for one client whether it takes part, and counts its participation before the upload.

    `registry` is the root of the pinned registry, `vrf_key` the private key for selection by VRF, and `beacon` verifies
    sparse graphs.  `mechanism` is a third party's that the owner has installed, which gives the cost of its rounds.
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
    receipts: KeptReceipts | None = None
    """The client's receipts of its rounds; None in simulations, where one program has all files."""

    def accept(self, invite: Invite) -> bytes | None:
        """Return the proof of selection for an invitation, or None if this client is not selected.

        Raise if the invitation is for another registry, breaks the policy, or costs more than the remaining budget.
        """
        check_pinned(invite, self.registry)
        self.policy.check_invite(invite)
        records = invite.terms.records
        sampled = (records.sampling, records.events) if records else None
        cost = RoundCost(invite.terms.cost, 0.0, float(draw_failure_probability(self.selection)), sampled)
        check_affordable(self.participation, {(invite.info.run, invite.info.index): cost}, self.policy.budget)
        return self.selection.claim(invite, self.me, self.vrf_key)

    def take_piece(self, count: int) -> None:
        """Raise ParametersRefused if a model has more pieces than the policy allows."""
        check_pieces(self.policy, count)

    def train(self, invite: Invite) -> None:
        """Count a training; raise if the policy allows no more until a participation is counted."""
        self.trainings.begin(self.participation.count(), self.policy.trainings)

    def consent(self, parameters: Parameters, proofs: Mapping[int, bytes]) -> None:
        """Raise if the parameters break policy or budget, or if clients or graph were not drawn by the agreed rule."""
        checked = ("policy", self.policy, self.mechanism)
        parameters.once(checked, lambda: self.policy.check(parameters, self.mechanism))
        cost = self._cost(parameters)
        check_affordable(self.participation, {(parameters.run, parameters.index): cost}, self.policy.budget)
        self.selection.verify(parameters, {ClientId(u): proof for u, proof in proofs.items()}, self.me)
        if parameters.is_sparse:
            if self.beacon is None:
                raise ParametersRefused("a sparse graph is verified with the beacon: give the owner its source")
            beacons.check_beacon(parameters, self.beacon)

    def attend(self, parameters: Parameters, machine: bytes) -> None:
        """Count the participation in this round and its cost, once and for one machine; raise beyond cap or budget."""
        limits = Limits(self.policy.participations, self.policy.budget, parameters.participations or None)
        self.participation.reserve(parameters.run, parameters.index, machine, self._cost(parameters), limits)
        if self.receipts is not None:
            self.receipts.note_attended(parameters)

    def conclude(self, parameters: Parameters, survivors: Sequence[int]) -> None:
        """Record that the whole sum of a round arrived, so that later histories of the server must have its receipt."""
        if self.receipts is not None:
            self.receipts.note_delivered(parameters, survivors)

    def _cost(self, parameters: Parameters) -> RoundCost:
        failure = draw_failure_probability(self.selection)
        return parameters.once(
            ("cost", self.mechanism, failure), lambda: round_cost(parameters, self.mechanism, failure)
        )


def check_pinned(invite: Invite, root: bytes) -> None:
    """Raise ParametersRefused if an invitation has another registry than the one that the owner has pinned."""
    if invite.registry != root:
        raise ParametersRefused("the invitation is for another registry than the one that this owner has pinned")


def check_affordable(participation: Participation, requested: Costs, budget: OwnerBudget | None) -> None:
    """Raise BudgetRefused if the budget does not cover the requested rounds; called before any data are used."""
    if budget is not None:
        check_budget(participation.spent(requested), budget, participation.plans(requested))
