"""The mechanisms of differential privacy: their interface, and the table of their names.

A mechanism encodes updates and decodes sums.  The theta^2 of a release (a sum that the server learns) is its cost, the
squared parameter of theta-GDP (`dordis.privacy.gdp`).  A mechanism is one tagged struct in a file of this package, and
one line of `TABLE`.  The tag is the name in the parameters of a round and in policies of owners.
"""

import math
import secrets
from dataclasses import replace
from enum import Enum
from fractions import Fraction
from typing import ClassVar, NamedTuple, Self

import msgspec

from dordis.errors import InputError, ParametersRefused
from dordis.kernels.ring import Vector
from dordis.loading import load_class
from dordis.privacy import encoding, planning, scaling
from dordis.privacy.accounting import Event, SkellamSum
from dordis.privacy.clipping import CLIPPING_BIT
from dordis.privacy.encoding import Entropy, Grid, Reals
from dordis.privacy.planning import Plan
from dordis.privacy.record_encoding import Integers
from dordis.privacy.scaling import MOST_BITS, Floats, Sensitivity
from dordis.privacy.setting import Setting
from dordis.privacy.skellam_noise import SKELLAM, NoiseLaw
from dordis.privacy.xnoise_components import Scheme

TABLE = {
    "skellam": "dordis.privacy.mechanisms.skellam_and_ddgauss:DSkellam",
    "ddgauss": "dordis.privacy.mechanisms.skellam_and_ddgauss:DDGauss",
    "central-gaussian": "dordis.privacy.mechanisms.central_and_local_noise:CentralGaussian",
    "local-gaussian": "dordis.privacy.mechanisms.central_and_local_noise:LocalGaussian",
    "none": "dordis.privacy.mechanisms.central_and_local_noise:NoMechanism",
}
WIDE = 64.0
"""Headroom of the 32-bit grids of the baselines: the ring holds this many standard deviations of a coordinate."""
_AGREE = 1 - 1e-9  # relative slack: machines may compute slightly different bounds in floating point


class NoiseFrom(Enum):
    """Which party adds the noise; this decides whom a client has to trust."""

    CLIENTS = "clients"
    """All clients together: each adds a share."""
    CLIENT = "client"
    """Every client adds enough noise for itself and trusts nobody."""
    SERVER = "server"
    """The server, which sees the sum without noise."""
    NOBODY = "nobody"

    @property
    def adversary(self) -> str:
        """Return a clause that says against which adversary epsilon holds."""
        if self is NoiseFrom.SERVER:
            return "against everybody but the server, who is trusted with the sum and with the noise"
        return "against the server, who knows who takes part"


class NoiseVariances(NamedTuple):
    """Variances of the noise on a sum, in squared integer units: planned, left in the sum, charged by the ledger."""

    wanted: float
    left: float
    charged: float


class Mechanism(msgspec.Struct, frozen=True):
    """Encodes updates as vectors over the ring, decodes their sums, and states the release that the ledger charges.

    `clip` is c, the largest norm of an update in real units.  `sensitivity` is Delta2^2, the largest squared norm of an
    encoded update in integer units.  Either is 0 if the mechanism does not bound this norm.  With records as the unit
    of privacy, `clip` bounds the gradient of a record, and `sensitivity` the change of the sum by a record.
    """

    grid: Grid
    clip: float = 0.0
    sensitivity: int = 0

    noise_from: ClassVar[NoiseFrom] = NoiseFrom.CLIENTS
    schemes: ClassVar[frozenset[Scheme]] = frozenset({Scheme.NONE})
    """Schemes by which the protocol may add noise; only NONE if the mechanism adds its own noise or needs none."""
    law: ClassVar[NoiseLaw] = SKELLAM
    """The law of the protocol's noise, which clients add from seeds and the server removes."""
    has_price_list: ClassVar[bool] = True
    """Whether the ledger stores a price list: a cost for each noise variance that up to T dropouts may leave.

    It is False if the protocol adds all noise of the mechanism: then the ledger computes the costs itself.
    """
    only_renyi: ClassVar[bool] = False
    """Whether only Renyi divergences of the noise are known: plans then use these, and owners can count no theta^2."""
    may_fold: ClassVar[bool] = False
    """Whether updates may be folded; False if the noise is added to unfolded updates, or to the unfolded sum."""
    sums_records: ClassVar[bool] = False
    """Whether the mechanism is analysed for exact sums of sampled records."""
    in_ring: ClassVar[bool] = True
    """Whether sums over the ring contain noise; if not, ideal simulations sum updates without rounding them."""
    description: ClassVar[str] = ""
    """Description of the noise, for the privacy statement."""

    @classmethod
    def from_plan(cls, plan: Plan) -> Self:
        """Return the mechanism of a plan."""
        return cls(grid_from_plan(plan), plan.setting.clip, plan.sensitivity.squared)

    @classmethod
    def for_cost(cls, setting: Setting, allowance: float) -> Self:
        """Return the mechanism with the least noise at which the theta^2 of a release is at most `allowance`."""
        return cls.from_plan(planning.plan_for_cost(setting, allowance))

    @classmethod
    def from_parameters(cls, grid: Grid, clip: float, sensitivity: int, noise: str) -> Self:
        """Return the mechanism that a round's parameters describe; `noise` is the text from its property `noise`."""
        return cls(grid, clip, sensitivity)

    @property
    def name(self) -> str:
        """Return the name of the mechanism in the parameters of a round."""
        return mechanism_name(type(self))

    @property
    def noise(self) -> str:
        """Return the noise that the mechanism itself adds, as text for the parameters of a round; empty if none."""
        return ""

    @property
    def share(self) -> Fraction:
        """Return the variance, in integer units, of the noise that each client adds in `encode`; 0 if it adds none."""
        return Fraction(0)

    @property
    def rounding(self) -> str:
        """Return how clients round updates: 'stochastic', or 'nearest' except for updates with a very small norm.

        It is always 'stochastic' if updates are not folded; the parameters of a round state it only if they are.
        """
        return encoding.choose_rounding(self.grid, self.clip or math.inf)

    @property
    def delivered_bits(self) -> int:
        """Return the bits to which a coordinate of the sum is quantised for delivery; 0 if it is not quantised."""
        return encoding.DELIVERED_BITS if self.grid.buckets and self.is_decoded_by_chunk else 0

    @property
    def is_decoded_by_chunk(self) -> bool:
        """Tell whether the chunks of a sum can be decoded one by one; False if the mechanism overrides `decode`."""
        return type(self).decode is Mechanism.decode

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Return a client's input to the sum: the update clipped, folded if projected, rotated, scaled and rounded.

        Folding and rotation are drawn from the round's `public_seed`, the rounding from the client's own `entropy`.
        """
        bounds = (self.clip or math.inf, self.sensitivity or None)
        return encoding.encode(update, self.grid, public_seed, entropy, *bounds)

    def add_client_noise(self, total: Integers, length: int, entropy: Entropy) -> None:
        """Add a client's own noise to its exact sum of records, in place; by default add none.

        `length` is C_q, the largest norm of a quantised record.
        """

    def clip_factor(self, update: Reals) -> float:
        """Return the factor by which an update is clipped, at most 1; raise InputError if the update is not finite."""
        return encoding.clip_factor(encoding.check_update(update, self.grid), self.clip or math.inf)

    def add_server_noise(self, mean: Floats, count: int = 1) -> None:
        """Add the server's noise on the sum, divided by `count`, to the mean over `count` clients, in place.

        All numbers are in real units.  By default add none.
        """

    def decode(self, total: Vector, count: int, public_seed: bytes) -> Floats:
        """Return the mean of `count` clients' updates in real units, from the sum of their inputs."""
        if count < 1:
            raise InputError(f"a mean is over at least one client, not {count}")
        decoded = encoding.decode(total, self.grid, public_seed)
        decoded /= count
        return decoded

    def release(self, variance: Fraction) -> Event:
        """Return the charged release (an `accounting.Event`): a sum under noise of `variance`, in integer units."""
        bound = Sensitivity(self.sensitivity, self.grid.padded)
        return SkellamSum(bound.squared, bound.l1, float(variance))

    def noise_variances(self, survivors: int, clients: int, colluders: int) -> NoiseVariances:
        """Return the variances of the noise that the mechanism itself, not the protocol, adds to a sum."""
        counts = (clients - colluders, survivors, max(0, survivors - colluders))
        return NoiseVariances(*(float(count * self.share) for count in counts))


def load_mechanism(name: str) -> type[Mechanism]:
    """Return the mechanism of a configured name: one of this package, or `package.module:Class`.

    >>> load_mechanism("skellam").description
    'distributed Skellam noise, drawn in integers'
    """
    return load_class(TABLE.get(name, name), Mechanism, "privacy.mechanism")


def find_builtin_mechanism(name: str) -> type[Mechanism]:
    """Return a mechanism of this package by name; raise ParametersRefused for any other name.

    This function is for names that other parties send: `load_mechanism` would import any module that they name.
    """
    if name not in TABLE:
        raise ParametersRefused(f"'{name}' is not a mechanism of dordis: pass the mechanism too")
    return load_mechanism(name)


def mechanism_name(kind: type[Mechanism]) -> str:
    """Return the name by which `load_mechanism` finds a mechanism: its tag, or `module:Class` if it has none."""
    return str(kind.__struct_config__.tag or f"{kind.__module__}:{kind.__qualname__}")


def grid_from_plan(plan: Plan) -> Grid:
    """Return the integer grid of a plan."""
    return Grid(plan.setting.dim, plan.setting.block, plan.scale, plan.bits, plan.setting.buckets)


def wide_grid(setting: Setting, sigma: float) -> Grid:
    """Return a 32-bit grid for sums under noise of standard deviation `sigma`, in real units.

    The ring of the grid holds `WIDE` standard deviations of a coordinate of the sum.
    """
    ring = replace(setting.ring(MOST_BITS), headroom=WIDE, largest=math.inf)
    return Grid(setting.dim, setting.block, scaling.scale_for_sigma(ring, sigma), MOST_BITS)


def check_bound(mechanism: Mechanism) -> None:
    """Raise ParametersRefused if rounding, at a mechanism's clip bound and scale, exceeds its stated `sensitivity`."""
    grid, clip = mechanism.grid, mechanism.clip
    if not 0 < clip < math.inf:
        raise ParametersRefused(f"the clip bound is a number above 0, not {clip}")
    least = math.floor(_AGREE * scaling.norm_bound(grid.scale * clip, grid.padded, bool(grid.buckets)))
    if mechanism.sensitivity < max(1, least):
        raise ParametersRefused(
            f"rounding at this scale and clip needs Delta2^2 = {least} at least, not {mechanism.sensitivity}"
        )


def check_folding(kind: type[Mechanism], buckets: int) -> None:
    """Raise ParametersRefused if there are buckets although the mechanism does not fold updates."""
    # Unfolding copies a bucket to several coordinates: noise that is drawn anew for each of these would average out.
    if buckets and not kind.may_fold:
        raise ParametersRefused(
            f"the mechanism '{mechanism_name(kind)}' does not fold updates: projection must be 'off'"
        )


def check_by_chunk(mechanism: Mechanism) -> None:
    """Raise ParametersRefused if the mechanism can decode only whole sums, because its `decode` is not the default."""
    if not mechanism.is_decoded_by_chunk:
        raise ParametersRefused(f"the mechanism '{mechanism.name}' decodes whole vectors only, not chunk by chunk")


def check_record_noise(kind: type[Mechanism], strategy: str, setting: Setting) -> None:
    """Raise InputError if records are the unit of privacy, and the noise or a further release cannot be accounted for.

    `strategy` is the name of the noise strategy.
    """
    if setting.records is None:
        return
    if any(value.name != CLIPPING_BIT for value in setting.further):
        raise InputError(
            "with records as the unit of privacy an application cannot release further values: use privacy.unit = "
            "'client', or another application"
        )
    if not kind.sums_records or strategy in ("early", "rebasing"):
        raise InputError(
            f"with records as the unit of privacy the noise '{strategy}' is not available over "
            f"'{mechanism_name(kind)}': privacy.noise is 'xnoise', 'orig' or 'conservative' over 'skellam', or "
            "the baseline 'central' or 'local'"
        )


def read_sigma(text: str) -> float:
    """Return the standard deviation stated in parameters of a round; raise ParametersRefused if it is no number."""
    try:
        return float(text)
    except ValueError:
        raise ParametersRefused(f"the noise of this mechanism is a standard deviation, not '{text}'") from None
