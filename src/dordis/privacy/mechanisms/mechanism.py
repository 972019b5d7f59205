"""The interface of mechanisms of differential privacy: encode an update for the sum, decode the sum.

A mechanism is one tagged struct in one file of this package, and one line in its table of names.  The tag is the name
that clients agree on, and that policies of owners know.
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
from dordis.privacy import encoding, planning, quantising, scaling
from dordis.privacy.accounting import Event, SkellamSum
from dordis.privacy.encoding import Entropy, Grid, Reals
from dordis.privacy.planning import Plan
from dordis.privacy.records.encoding import Integers
from dordis.privacy.scaling import MOST_BITS, Floats, Sensitivity
from dordis.privacy.setting import Setting
from dordis.privacy.skellam_noise import SKELLAM, NoiseLaw
from dordis.privacy.xnoise_components import Scheme

WIDE = 64.0
"""Standard deviations that the ring holds where nothing has to be proved of it."""
_AGREE = 1 - 1e-9  # floating point may differ by a little between the machines that compute a bound


class NoiseFrom(Enum):
    """Who adds the noise that privacy counts on, and so who is trusted with what."""

    CLIENTS = "clients"
    """All clients together: a share of each."""
    CLIENT = "client"
    """Every client for itself: it counts on nobody else."""
    SERVER = "server"
    """The server, which sees the sum without noise."""
    NOBODY = "nobody"

    @property
    def adversary(self) -> str:
        """Say whom an epsilon under this noise holds against."""
        if self is NoiseFrom.SERVER:
            return "against everybody but the server, who is trusted with the sum and with the noise"
        return "against the server, who knows who takes part"


class NoiseVariances(NamedTuple):
    """Variances in squared integer units: planned, in the sum, and counted on by privacy."""

    wanted: float
    left: float
    charged: float


class Mechanism(msgspec.Struct, frozen=True):
    """Turn updates into vectors over the ring, sums of them into updates, and say what that proves.

    `clip` is c, the largest norm of an update in real units, and `sensitivity` is Delta2^2, the largest squared norm in
    the integers; either is 0 if it is not bounded.
    """

    grid: Grid
    clip: float = 0.0
    sensitivity: int = 0

    noise_from: ClassVar[NoiseFrom] = NoiseFrom.CLIENTS
    schemes: ClassVar[frozenset[Scheme]] = frozenset({Scheme.NONE})
    """The ways in which the protocol may add noise; a mechanism that brings its own noise, or none, gets none."""
    law: ClassVar[NoiseLaw] = SKELLAM
    """The law of the noise that is drawn from seeds: clients add it, and the server removes it."""
    has_price_list: ClassVar[bool] = True
    """Whether the ledger stores the prices that `release` returns; False where the protocol alone adds the noise."""
    only_renyi: ClassVar[bool] = False
    """Whether only a Renyi divergence is known of the noise: it is planned by that, and no owner can count it."""
    may_fold: ClassVar[bool] = False
    """Whether updates may be folded first: not where noise is added to whole updates, before the sum or after it."""
    sums_records: ClassVar[bool] = False
    """Whether the mechanism is analysed for exact sums of sampled records."""
    in_ring: ClassVar[bool] = True
    """Whether the noise is in the integers; where it is not, a simulation may sum updates that were not rounded."""
    description: ClassVar[str] = ""
    """Description of the noise, for the privacy statement."""

    @classmethod
    def from_plan(cls, plan: Plan) -> Self:
        """Return the mechanism of a plan."""
        return cls(grid_from_plan(plan), plan.setting.clip, plan.sensitivity.squared)

    @classmethod
    def for_cost(cls, setting: Setting, allowance: float) -> Self:
        """Return the mechanism whose releases cost a theta^2 of `allowance` at most; see `Setting.allowance`."""
        return cls.from_plan(planning.plan_for_cost(setting, allowance))

    @classmethod
    def from_parameters(cls, grid: Grid, clip: float, sensitivity: int, noise: str) -> Self:
        """Return the mechanism that was written down in the parameters of a round; see `noise`."""
        return cls(grid, clip, sensitivity)

    @property
    def name(self) -> str:
        """Return the name that clients agree on."""
        return mechanism_name(type(self))

    @property
    def noise(self) -> str:
        """Return how much noise the mechanism brings, as clients agree on it; empty if it brings none."""
        return ""

    @property
    def share(self) -> Fraction:
        """Return the variance of the noise that each client brings and that adds up like the protocol's."""
        return Fraction(0)

    @property
    def rounding(self) -> str:
        """Return how clients round, as they agree on it."""
        return encoding.choose_rounding(self.grid, self.clip or math.inf)

    @property
    def delivered_bits(self) -> int:
        """Return the bits of a coordinate of the sum as it is delivered and used; 0: the sum is used as it is."""
        return quantising.BITS if self.grid.buckets and self.is_decoded_by_chunk else 0

    @property
    def is_decoded_by_chunk(self) -> bool:
        """Tell whether chunks can be decoded one by one: not where `decode` does more than undo the encoding."""
        return type(self).decode is Mechanism.decode

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Return a client's input to the sum: clip, fold, rotate, scale, round, with secrets from its own entropy."""
        bounds = (self.clip or math.inf, self.sensitivity or None)
        return encoding.encode(update, self.grid, public_seed, entropy, *bounds)

    def add_client_noise(self, total: Integers, length: int, entropy: Entropy) -> None:
        """Add a client's own noise to its exact sum of records, in place; `length` is C_q.  Most have none."""

    def clip_factor(self, update: Reals) -> float:
        """Return the factor, at most 1, that scales an update to the clip bound; raise if the update is not finite."""
        return encoding.clip_factor(encoding.check_update(update, self.grid), self.clip or math.inf)

    def add_server_noise(self, mean: Floats, count: int = 1) -> None:
        """Add the server's noise to the mean over `count` clients, in place, in real units; most have none."""

    def decode(self, total: Vector, count: int, public_seed: bytes) -> Floats:
        """Return the mean over `count` clients from the sum of their inputs, in real units; the sum for 1."""
        if count < 1:
            raise InputError(f"a mean is over at least one client, not {count}")
        decoded = encoding.decode(total, self.grid, public_seed)
        decoded /= count
        return decoded

    def release(self, variance: Fraction) -> Event:
        """Return the event that is charged for a sum whose noise counts for this variance, in integer units."""
        bound = Sensitivity(self.sensitivity, self.grid.padded)
        return SkellamSum(bound.squared, bound.l1, float(variance))

    def noise_variances(self, survivors: int, clients: int, colluders: int) -> NoiseVariances:
        """Return the noise that the mechanism itself adds to the sum of `survivors` updates."""
        counts = (clients - colluders, survivors, max(0, survivors - colluders))
        return NoiseVariances(*(float(count * self.share) for count in counts))


def mechanism_name(kind: type[Mechanism]) -> str:
    """Return the tag of a mechanism, or its place if it has none."""
    return str(kind.__struct_config__.tag or f"{kind.__module__}:{kind.__qualname__}")


def grid_from_plan(plan: Plan) -> Grid:
    """Return the integer grid of a plan."""
    return Grid(plan.setting.dim, plan.setting.block, plan.scale, plan.bits, plan.setting.buckets)


def wide_grid(setting: Setting, sigma: float) -> Grid:
    """Return a grid of 32 bits that holds noise of this deviation in the sum, with much room."""
    ring = replace(setting.ring(MOST_BITS), headroom=WIDE, largest=math.inf)
    return Grid(setting.dim, setting.block, scaling.scale_for_sigma(ring, sigma), MOST_BITS)


def check_bound(mechanism: Mechanism) -> None:
    """Refuse a clip or a bound on the norm that rounding could not keep to."""
    grid, clip = mechanism.grid, mechanism.clip
    if not 0 < clip < math.inf:
        raise ParametersRefused(f"the clip bound is a number above 0, not {clip}")
    least = math.floor(_AGREE * scaling.norm_bound(grid.scale * clip, grid.padded, bool(grid.buckets)))
    if mechanism.sensitivity < max(1, least):
        raise ParametersRefused(
            f"rounding at this scale and clip needs Delta2^2 = {least} at least, not {mechanism.sensitivity}"
        )


def check_folding(kind: type[Mechanism], buckets: int) -> None:
    """Raise ParametersRefused if updates are folded under a mechanism whose noise is not added to folded updates."""
    # A folded update is unfolded into copies: noise that differs from copy to copy would average out.
    if buckets and not kind.may_fold:
        raise ParametersRefused(
            f"the mechanism '{mechanism_name(kind)}' does not fold updates: projection must be 'off'"
        )


def read_sigma(text: str) -> float:
    """Return a standard deviation that was written down."""
    try:
        return float(text)
    except ValueError:
        raise ParametersRefused(f"the noise of this mechanism is a standard deviation, not '{text}'") from None
