"""The owner of a client, and the policy by which the client refuses rounds: bounds on parameters, and a budget.

Without a budget a policy allows no round, unless it allows rounds without a guarantee.  The budget covers the rounds of
all runs and servers; the client itself adds up their cost (`dordis.owner.participation`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec

from dordis.errors import InputError, ParametersRefused
from dordis.owner.participation import Costs, Limits, MemoryTrainings, OwnerBudget, Participation, check_budget
from dordis.owner.receipts import KeptReceipts
from dordis.privacy.further_releases import LARGEST_SCALE
from dordis.privacy.mechanisms import Mechanism
from dordis.privacy.record_accounting import WORD
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId
from dordis.protocols.costs import RoundCost, least_variance, noise_ratios, round_cost
from dordis.protocols.limits import FEW_PIECES, SMALLEST_PIECE
from dordis.protocols.parameters import MALICIOUS, Parameters
from dordis.rounds.invitation import Invite, Terms
from dordis.selection import beacon as beacons
from dordis.selection.selection import Selection, draw_failure_probability

ASSISTED = "assisted"
CLIENT, RECORD = "client", "record"
"""Units of privacy."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds that an owner sets; the defaults are strict.

    >>> Policy(cohort=50, epsilon=6.0, delta=1e-5).budget
    OwnerBudget(epsilon=6.0, delta=1e-05)
    """

    cohort: int = 2
    """Least number of clients in a round, n."""
    quorum: Fraction = Fraction(1, 2)
    """Least fraction of a round's clients that must answer each stage: threshold t / n, or quorum q / n for SecAgg+."""
    colluders: int = 1
    """Least value of T_C; the guarantee must hold even without the noise of T_C colluders in a round."""
    variance: Fraction | None = None
    """Least variance of the noise that counts for privacy, per encoded coordinate, after any tolerated dropout."""
    noise: Fraction | None = None
    """Least ratio, in every release, of noise variance (counted as in `variance`) to squared L2 sensitivity."""
    epsilon: float | None = None
    """Epsilon of the budget, which together with `delta` bounds the cost of all rounds together."""
    delta: float | None = None
    without_guarantee: bool = False
    """Whether to allow rounds whose cost this client cannot bound; the client then has no budget."""
    bits: int = 32
    """Largest number of bits of a coordinate."""
    modes: frozenset[str] = frozenset({MALICIOUS})
    schemes: frozenset[str] = frozenset({Scheme.SINGLE.value, Scheme.EXACT.value})
    mechanisms: frozenset[str] = frozenset({"skellam"})
    protocols: frozenset[str] = frozenset({"secagg", "secagg+"})
    coordinates: int = 1 << 27
    """Largest number of coordinates of an update; a client holds several vectors with eight bytes per coordinate."""
    model_bytes: int = 1 << 30
    """Largest size of a model in bytes; it is held in memory and written to the journal."""
    pieces: int = FEW_PIECES + (1 << 30) // SMALLEST_PIECE
    """Largest number of pieces of a model; each piece becomes a record in the journal."""
    units: frozenset[str] = frozenset({CLIENT})
    """Allowed units of privacy: `client`, or `record`, which protects each record but not the client as a whole."""
    sampling: Fraction = Fraction(1)
    """Largest probability with which a record is sampled."""
    participations: int | None = None
    """Largest number of rounds over all runs and servers; None for no limit."""
    helpers: frozenset[int] = frozenset()
    """Ids of the helpers that may reveal sums of masks, for protocols with helpers; none by default."""
    honest_helpers: int = 2
    """Least number of honest helpers in a round, m - f: of m helpers, f may collude with the server."""
    faulty_helpers: int = 1
    """Least f, the number of colluding helpers that a round must withstand."""
    no_base: bool = False
    """Whether to allow rounds in which more than f helpers, if they collude, can remove all noise of a client."""
    trainings: int | None = 10
    """Largest number of trainings since the last counted participation; must exceed `federation.tries`; None: no limit.
    """

    def __post_init__(self) -> None:
        if not 0 <= self.quorum <= 1:
            raise InputError("the quorum is a fraction of the cohort, in 0..1")
        bounds = (self.cohort, self.colluders, self.coordinates, self.model_bytes, self.pieces)
        counts = (self.participations or 0, self.trainings or 0)
        if min(*bounds, *counts, self.variance or 0, self.noise or 0) < 0:
            raise InputError("the limits in a policy are 0 or more")
        if (self.epsilon is None) != (self.delta is None):
            raise InputError("a policy's budget needs both epsilon and delta")
        _ = self.budget

    @property
    def budget(self) -> OwnerBudget | None:
        """Return the owner's budget; None if none is set, or if rounds without a guarantee are allowed."""
        if self.without_guarantee or self.epsilon is None or self.delta is None:
            return None
        return OwnerBudget(self.epsilon, self.delta)

    @property
    def consents(self) -> tuple[str, ...]:
        """Return a clause of text for everything that this policy allows and the default policy does not."""
        default = Policy()
        beyond = (
            (f"a server that is only guarded against as {mode}" for mode in sorted(self.modes - default.modes)),
            (f"the protocol '{name}'" for name in sorted(self.protocols - default.protocols)),
            (f"helper {helper}, who opens sums together with others" for helper in sorted(self.helpers)),
            ["rounds in which more than f helpers can remove all noise of a client"] if self.no_base else (),
            (f"the mechanism '{name}'" for name in sorted(self.mechanisms - default.mechanisms)),
            (f"'{name}' as the unit of privacy" for name in sorted(self.units - default.units)),
            (f"the noise scheme '{name}'" for name in sorted(self.schemes - default.schemes)),
            ["rounds whose cost a client cannot bound by itself, so that it keeps to no budget"]
            if self.without_guarantee
            else (),
        )
        return tuple(said for line in beyond for said in line)

    def check(self, parameters: Parameters, kind: type[Mechanism] | None = None) -> None:
        """Raise ParametersRefused, naming the first setting of this policy that the parameters of a round break.

        `kind` is the class of a third party's mechanism that the owner has installed, or None.
        """
        self.check_terms(Terms.from_parameters(parameters, kind))
        check_quorum(self, parameters)
        check_helpers(self, parameters)
        check_base_noise(self, parameters)
        check_variance(self, parameters)
        check_noise(self, min(noise_ratios(parameters)))
        check_further_scales(parameters)

    def check_invite(self, invite: Invite) -> None:
        """Raise ParametersRefused, naming the first setting of this policy that an invitation breaks."""
        check_protocol(self, invite)
        check_coordinates(self, invite)
        check_model_bytes(self, invite)
        self.check_terms(invite.terms)

    def check_terms(self, terms: Terms) -> None:
        """Raise ParametersRefused, naming the first setting of this policy that the terms of a round break."""
        check_mode(self, terms)
        check_cohort(self, terms)
        check_colluders(self, terms)
        check_bits(self, terms)
        check_mechanism(self, terms)
        check_scheme(self, terms)
        check_unit(self, terms)
        check_sampling(self, terms)
        check_noise(self, terms.ratio)
        check_budgeted(self)


def check_mode(policy: Policy, terms: Terms) -> None:
    """Raise ParametersRefused unless the owner accepts the threat model of the round."""
    if terms.mode not in policy.modes:
        raise _refused("modes", f"'{terms.mode}' is not among them")


def check_cohort(policy: Policy, terms: Terms) -> None:
    """Raise ParametersRefused if the terms allow a round with fewer clients than the policy's `cohort`."""
    if terms.clients < policy.cohort:
        raise _refused("cohort", f"{terms.clients} clients are fewer than {policy.cohort}")


def check_quorum(policy: Policy, parameters: Parameters) -> None:
    """Raise ParametersRefused if the round's quorum is too small a fraction of its clients."""
    share = parameters.quorum_fraction
    if share is not None and share < policy.quorum:
        raise _refused("quorum", f"a quorum of {share} of the clients is below {policy.quorum}")


def check_helpers(policy: Policy, parameters: Parameters) -> None:
    """Raise ParametersRefused if the policy lacks a helper of the round, or if m - f or f is too small.

    m is the number of helpers in the round, of which at most f may collude with the server.
    """
    trusted = parameters.assistance
    if trusted is None:
        return
    if strangers := set(trusted.helpers) - policy.helpers:
        raise _refused("helpers", f"helper {min(strangers)} is not among them")
    if len(trusted.helpers) - trusted.faulty < policy.honest_helpers:
        raise _refused("honest_helpers", f"m - f = {len(trusted.helpers) - trusted.faulty} is too small")
    if trusted.faulty < policy.faulty_helpers:
        raise _refused("faulty_helpers", f"f = {trusted.faulty} is too small")


def check_base_noise(policy: Policy, parameters: Parameters) -> None:
    """Raise ParametersRefused if more than f helpers could remove all noise of a client, and the policy forbids it."""
    trusted = parameters.assistance
    if trusted is not None and trusted.no_base and not policy.no_base:
        raise _refused("no_base", "more than f helpers could remove all noise of a client")


def check_colluders(policy: Policy, terms: Terms) -> None:
    """Raise ParametersRefused if the noise is planned for too few colluders."""
    if terms.colluders < policy.colluders:
        raise _refused("colluders", f"T_C = {terms.colluders} is below {policy.colluders}")


def check_bits(policy: Policy, terms: Terms) -> None:
    """Raise ParametersRefused if a coordinate has more bits than the policy allows."""
    if terms.bits > policy.bits:
        raise _refused("bits", f"{terms.bits} exceed {policy.bits}")


def check_mechanism(policy: Policy, terms: Terms) -> None:
    """Raise ParametersRefused unless the owner accepts the mechanism."""
    if terms.mechanism not in policy.mechanisms:
        raise _refused("mechanisms", f"'{terms.mechanism}' is not among them")


def check_scheme(policy: Policy, terms: Terms) -> None:
    """Raise ParametersRefused unless the owner accepts the noise scheme."""
    if terms.scheme not in policy.schemes:
        raise _refused("schemes", f"'{terms.scheme}' is not among them")


def check_variance(policy: Policy, parameters: Parameters) -> None:
    """Raise ParametersRefused if a chunk may have too little noise after some dropout that the round tolerates."""
    least = least_variance(parameters, range(len(parameters.chunks)))
    if policy.variance is not None and least < policy.variance:
        raise _refused("variance", f"the noise of a chunk may be as little as {least}")


def check_unit(policy: Policy, terms: Terms) -> None:
    """Raise ParametersRefused unless the owner accepts the unit of privacy, client or record."""
    unit = RECORD if terms.records else CLIENT
    if unit not in policy.units:
        raise _refused("units", f"'{unit}' is not among them")


def check_sampling(policy: Policy, terms: Terms) -> None:
    """Raise ParametersRefused if records are sampled with a larger probability than the owner allows."""
    if terms.records and Fraction(terms.records.sampling, WORD) > policy.sampling:
        raise _refused("sampling", f"records are sampled with probability {terms.records.probability:.4g}")


def check_noise(policy: Policy, ratio: Fraction | None) -> None:
    """Raise ParametersRefused if `ratio`, of noise variance to squared sensitivity, is too small for the policy.

    `ratio` is the least over all releases; at an invitation it is an upper bound on this, or None if none is known.
    """
    if policy.noise is not None and ratio is not None and ratio < policy.noise:
        few = f"the noise variance is at most {float(ratio):.4g} of the squared sensitivity, below {policy.noise}"
        raise _refused("noise", f"{few}: lower this line, or ask for a run with a smaller epsilon")


def check_further_scales(parameters: Parameters) -> None:
    """Raise ParametersRefused if the scale of a further release, such as the clipping bit, is above LARGEST_SCALE."""
    for release in parameters.encoding.further_releases:
        if release.scale > LARGEST_SCALE:
            raise ParametersRefused(f"the scale of the {release.name} is {LARGEST_SCALE} at most")


def check_budgeted(policy: Policy) -> None:
    """Raise ParametersRefused unless the owner has set a budget or allowed rounds without a guarantee."""
    if policy.budget is None and not policy.without_guarantee:
        raise _refused(
            "epsilon", "there is no budget: give epsilon and delta for all rounds together, or set without_guarantee"
        )


def check_coordinates(policy: Policy, invite: Invite) -> None:
    """Raise ParametersRefused if the update has more coordinates than the owner allows."""
    if invite.dim > policy.coordinates:
        raise _refused("coordinates", f"an update of {invite.dim} coordinates exceeds {policy.coordinates}")


def check_model_bytes(policy: Policy, invite: Invite) -> None:
    """Raise ParametersRefused if the model has more bytes than the owner allows."""
    if invite.model_bytes > policy.model_bytes:
        raise _refused("model_bytes", f"a model of {invite.model_bytes} bytes exceeds {policy.model_bytes}")


def check_pieces(policy: Policy, count: int) -> None:
    """Raise ParametersRefused if the model has more pieces than the owner allows."""
    if count > policy.pieces:
        raise _refused("pieces", f"a model of {count} pieces exceeds {policy.pieces}")


def check_protocol(policy: Policy, invite: Invite) -> None:
    """Raise ParametersRefused unless the owner accepts the summing protocol."""
    if invite.protocol not in policy.protocols:
        raise _refused("protocols", f"'{invite.protocol}' is not among them")


def _refused(line: str, why: str) -> ParametersRefused:
    return ParametersRefused(f"the owner's policy, line '{line}', forbids this round: {why}")


@dataclass(frozen=True)
class Owner:
    """The owner of one client: decides whether the client takes part, and counts participations before uploads.

    `registry` is the root of the registry that the client accepts, `vrf_key` the private key for selection by VRF, and
    `beacon` the public randomness by which sparse graphs are verified.  `mechanism` is None, or the class of a third
    party's mechanism that the owner has installed; the class states the cost of the rounds that use the mechanism.
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
    """The client's notes and receipts of its rounds; None in simulations, where client and server are one program."""

    def accept(self, invite: Invite) -> bytes | None:
        """Return the proof of selection for a round (empty if none is needed), or None if this client is not selected.

        Raise if the invitation has another registry or breaks the policy, or if the round may cost more than is left
        of the budget.
        """
        check_pinned(invite, self.registry)
        self.policy.check_invite(invite)
        records = invite.terms.records
        sampled = (records.sampling, records.events) if records else None
        cost = RoundCost(invite.terms.cost, 0.0, float(draw_failure_probability(self.selection)), sampled)
        check_affordable(self.participation, {(invite.info.run, invite.info.index): cost}, self.policy.budget)
        return self.selection.claim(invite, self.me, self.vrf_key)

    def take_piece(self, count: int) -> None:
        """Raise ParametersRefused if the policy forbids a model of `count` pieces; called before a piece is stored."""
        check_pieces(self.policy, count)

    def train(self, invite: Invite) -> None:
        """Count a training; raise ParametersRefused if the policy allows no more until a participation is counted."""
        self.trainings.begin(self.participation.count(), self.policy.trainings)

    def consent(self, parameters: Parameters, proofs: Mapping[int, bytes]) -> None:
        """Raise if the parameters break policy or budget, or if clients or graph were not drawn by the agreed rule.

        `proofs` has the clients' proofs of selection, by id.
        """
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
        """Count a round and its cost, once; raise if cap or budget forbids it, or another machine counted the round."""
        limits = Limits(self.policy.participations, self.policy.budget, parameters.participations or None)
        self.participation.reserve(parameters.run, parameters.index, machine, self._cost(parameters), limits)
        if self.receipts is not None:
            self.receipts.note_attended(parameters)

    def conclude(self, parameters: Parameters, survivors: Sequence[int]) -> None:
        """Record that the whole sum of a round arrived; from then on the server must be able to show the receipt."""
        if self.receipts is not None:
            self.receipts.note_delivered(parameters, survivors)

    def _cost(self, parameters: Parameters) -> RoundCost:
        failure = draw_failure_probability(self.selection)
        return parameters.once(
            ("cost", self.mechanism, failure), lambda: round_cost(parameters, self.mechanism, failure)
        )


def check_pinned(invite: Invite, root: bytes) -> None:
    """Raise ParametersRefused if an invitation has another registry than `root`, the one that the client accepts."""
    if invite.registry != root:
        raise ParametersRefused("the invitation is for another registry than the one that this owner has pinned")


def check_affordable(participation: Participation, requested: Costs, budget: OwnerBudget | None) -> None:
    """Raise BudgetRefused if the budget does not cover the counted rounds and the `requested` rounds together."""
    if budget is not None:
        check_budget(participation.spent(requested), budget, participation.plans(requested))
