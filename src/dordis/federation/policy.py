"""The policy of a client's owner: the floors, the ceilings and the budget outside which the client sends nothing.

A policy without a budget allows nothing.  The budget is for all runs and servers together; what every round costs is
counted by the client itself (`dordis.federation.participation`).
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import msgspec

from dordis.errors import InputError, ParametersRefused
from dordis.federation.participation import OwnerBudget
from dordis.privacy.clipping import LARGEST_SCALE
from dordis.privacy.mechanisms.mechanism import Mechanism
from dordis.privacy.xnoise import Scheme
from dordis.protocols.costs import least_variance, noise_ratios
from dordis.protocols.limits import FEW_PIECES, SMALLEST_PIECE
from dordis.protocols.parameters import MALICIOUS, Parameters
from dordis.rounds.invitation import Invite
from dordis.rounds.terms import Terms


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an owner agrees to; what is left out takes its default, which is on the safe side.

    >>> Policy.of({"cohort": 50, "epsilon": 6, "delta": 1e-5}).budget
    OwnerBudget(epsilon=6.0, delta=1e-05)
    """

    cohort: int = 2
    """Least number of clients, n."""
    quorum: Fraction = Fraction(1, 2)
    """Least fraction of n that must answer every stage: t / n on the complete graph, q / n on SecAgg+."""
    colluders: int = 1
    """Least T_C: clients whose own noise does not count."""
    variance: Fraction | None = None
    """Least noise variance that privacy can count on in every chunk, whoever drops, in squared integer units."""
    noise: Fraction | None = None
    """The same divided by the squared sensitivity Delta2^2, for every release: the update, and the clipping bit too."""
    epsilon: float | None = None
    """The budget, with `delta`: what all rounds together may cost."""
    delta: float | None = None
    without_guarantee: bool = False
    """Whether rounds are allowed whose cost this client cannot bound by itself: then it keeps to no budget."""
    bits: int = 32
    """Most bits a coordinate."""
    modes: frozenset[str] = frozenset({MALICIOUS})
    schemes: frozenset[str] = frozenset({Scheme.SINGLE.value, Scheme.EXACT.value})
    mechanisms: frozenset[str] = frozenset({"skellam"})
    protocols: frozenset[str] = frozenset({"secagg", "secagg+"})
    coordinates: int = 1 << 27
    """Largest number of coordinates of an update: a client holds several vectors of eight bytes a coordinate."""
    model_bytes: int = 1 << 30
    """Largest size of a model in bytes: it is held in memory and written to the journal."""
    pieces: int = FEW_PIECES + (1 << 30) // SMALLEST_PIECE
    """Largest number of pieces of a model, each a journal record; short models may have fewer (`check_pieces`)."""
    participations: int | None = None
    """Most rounds, over all runs and servers: the cap of `Participation`."""
    trainings: int | None = 10
    """Largest number of trainings before a round counts a participation; above `federation.tries`."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Policy":
        """Read a policy from plain settings; fractions are numbers or texts like "2/3", unknown keys are refused."""
        try:
            return msgspec.convert(settings, cls, dec_hook=_fraction)
        except msgspec.ValidationError as error:
            raise InputError(f"this is not a policy: {error}") from None

    def __post_init__(self) -> None:
        if not 0 <= self.quorum <= 1:
            raise InputError("the quorum is a fraction of the cohort, in 0..1")
        bounds = (self.cohort, self.colluders, self.coordinates, self.model_bytes, self.pieces)
        counts = (self.participations or 0, self.trainings or 0)
        if min(*bounds, *counts, self.variance or 0, self.noise or 0) < 0:
            raise InputError("floors and ceilings are 0 or more")
        if (self.epsilon is None) != (self.delta is None):
            raise InputError("a policy's budget is both, epsilon and delta")
        _ = self.budget

    @property
    def budget(self) -> OwnerBudget | None:
        """Return the budget that is kept; None where rounds are allowed without."""
        if self.without_guarantee or self.epsilon is None or self.delta is None:
            return None
        return OwnerBudget(self.epsilon, self.delta)

    @property
    def consents(self) -> tuple[str, ...]:
        """Say what this policy allows that a policy refuses unless it is told otherwise."""
        usual = Policy()
        beyond = (
            (f"a server that is only guarded against as {mode}" for mode in sorted(self.modes - usual.modes)),
            (f"the protocol '{name}'" for name in sorted(self.protocols - usual.protocols)),
            (f"the mechanism '{name}'" for name in sorted(self.mechanisms - usual.mechanisms)),
            (f"the noise scheme '{name}'" for name in sorted(self.schemes - usual.schemes)),
            ["rounds whose cost a client cannot bound by itself, so that it keeps to no budget"]
            if self.without_guarantee
            else (),
        )
        return tuple(said for line in beyond for said in line)

    def check(self, parameters: Parameters, kind: type[Mechanism] | None = None) -> None:
        """Refuse parameters outside this policy, naming the first line that they break."""
        self.check_terms(Terms.of(parameters, kind))
        check_quorum(self, parameters)
        check_variance(self, parameters)
        check_noise(self, min(noise_ratios(parameters)))
        check_bit(parameters)

    def check_invite(self, invite: Invite) -> None:
        """Raise ParametersRefused if an invitation breaks this policy, and name the first line that it breaks."""
        check_protocol(self, invite)
        check_coordinates(self, invite)
        check_model_bytes(self, invite)
        self.check_terms(invite.terms)

    def check_terms(self, terms: Terms) -> None:
        """Refuse terms outside this policy, naming the first line that they break."""
        check_mode(self, terms)
        check_cohort(self, terms)
        check_colluders(self, terms)
        check_bits(self, terms)
        check_mechanism(self, terms)
        check_scheme(self, terms)
        check_noise(self, terms.ratio)
        check_budgeted(self)


def check_mode(policy: Policy, terms: Terms) -> None:
    """The owner trusts the server as much as the mode does."""
    if terms.mode not in policy.modes:
        raise _refused("modes", f"'{terms.mode}' is not among them")


def check_cohort(policy: Policy, terms: Terms) -> None:
    """There are enough clients to hide among."""
    if terms.clients < policy.cohort:
        raise _refused("cohort", f"{terms.clients} clients are fewer than {policy.cohort}")


def check_quorum(policy: Policy, parameters: Parameters) -> None:
    """Enough clients must answer."""
    if parameters.quorum < policy.quorum * len(parameters.clients):
        n = len(parameters.clients)
        raise _refused("quorum", f"{parameters.quorum} of {n} clients are fewer than {policy.quorum} of them")


def check_colluders(policy: Policy, terms: Terms) -> None:
    """The noise makes up for enough colluders."""
    if terms.colluders < policy.colluders:
        raise _refused("colluders", f"T_C = {terms.colluders} is below {policy.colluders}")


def check_bits(policy: Policy, terms: Terms) -> None:
    """The upload is not too large."""
    if terms.bits > policy.bits:
        raise _refused("bits", f"{terms.bits} exceed {policy.bits}")


def check_mechanism(policy: Policy, terms: Terms) -> None:
    """Updates are encoded, and noise is drawn, as the owner agrees."""
    if terms.mechanism not in policy.mechanisms:
        raise _refused("mechanisms", f"'{terms.mechanism}' is not among them")


def check_scheme(policy: Policy, terms: Terms) -> None:
    """Noise is divided among the clients as the owner agrees."""
    if terms.scheme not in policy.schemes:
        raise _refused("schemes", f"'{terms.scheme}' is not among them")


def check_variance(policy: Policy, parameters: Parameters) -> None:
    """Every chunk keeps enough noise, whoever drops."""
    least = least_variance(parameters, range(len(parameters.chunks)))
    if policy.variance is not None and least < policy.variance:
        raise _refused("variance", f"the noise of a chunk may be as little as {least}")


def check_noise(policy: Policy, ratio: Fraction) -> None:
    """Every release keeps enough noise for what one client can change in it: `ratio` is the least of them.

    To leave a client out means that its update is zero, and that its clipping bit is 0, neither +s nor -s.
    """
    if policy.noise is not None and ratio < policy.noise:
        raise _refused("noise", f"{float(ratio):.4g} of the squared sensitivity is below {policy.noise}")


def check_bit(parameters: Parameters) -> None:
    """The clipping bit is within what any plan gives it: a larger one only makes room for mischief."""
    if not 0 <= parameters.encoding.bit <= LARGEST_SCALE:
        raise ParametersRefused(f"the scale of the clipping bit is {LARGEST_SCALE} at most")


def check_budgeted(policy: Policy) -> None:
    """The owner has set a budget, or says that there is none."""
    if policy.budget is None and not policy.without_guarantee:
        raise _refused(
            "epsilon", "there is no budget: give epsilon and delta for all rounds together, or set without_guarantee"
        )


def check_coordinates(policy: Policy, invite: Invite) -> None:
    """The update is not longer than the owner allows."""
    if invite.dim > policy.coordinates:
        raise _refused("coordinates", f"an update of {invite.dim} coordinates exceeds {policy.coordinates}")


def check_model_bytes(policy: Policy, invite: Invite) -> None:
    """The model is not larger than the owner allows."""
    if invite.model_bytes > policy.model_bytes:
        raise _refused("model_bytes", f"a model of {invite.model_bytes} bytes exceeds {policy.model_bytes}")


def check_pieces(policy: Policy, count: int) -> None:
    """The model comes in no more pieces than the owner allows."""
    if count > policy.pieces:
        raise _refused("pieces", f"a model comes in {count}, and {policy.pieces} are allowed")


def check_protocol(policy: Policy, invite: Invite) -> None:
    """The sum is computed as the owner agrees."""
    if invite.protocol not in policy.protocols:
        raise _refused("protocols", f"'{invite.protocol}' is not among them")


def _refused(line: str, why: str) -> ParametersRefused:
    return ParametersRefused(f"the owner's policy, line '{line}', forbids this round: {why}")


def _fraction(kind: type, value: object) -> Fraction:
    if kind is not Fraction or not isinstance(value, int | float | str | Fraction):
        raise TypeError("a fraction is a number, or a text like '2/3'")
    try:
        return Fraction(str(value))  # 0.1 means a tenth
    except (ValueError, ZeroDivisionError):
        raise ValueError("a fraction is a number, or a text like '2/3'") from None
