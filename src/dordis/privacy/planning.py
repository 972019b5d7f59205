"""From a privacy budget to the noise of a round, and back: which scale, bits, variances and cap a run needs.

A `Setting` says what is given, a `Plan` what follows.  `plan` finds the least noise for a budget, `plan_within` that
for what one round may cost, and `account` the epsilon of given noise.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from dordis.errors import InputError
from dordis.kernels.packing import packed_size
from dordis.privacy import accounting, gdp, skellam
from dordis.privacy.accounting import Composed, Event, ParticipationSchedule, SkellamSum
from dordis.privacy.cell_table import GRID, LARGEST_VARIANCE, rounded_up
from dordis.privacy.clipping import Bit, plan_bit
from dordis.privacy.skellam import MOST_BITS, Ring, Sensitivity, check_buckets
from dordis.privacy.xnoise import NoisePlan, Scheme, default_tolerance

LONGEST = 2**31
XNOISE = (Scheme.SINGLE, Scheme.EXACT)
_PROBE = Fraction(2**30)  # a central variance at which shares of it are exact to 2^-50
_MARGIN = 1 - 1e-12  # so that rounding up to the grid does not pass the sampler's bound
_SPARE = 1 - 2e-9  # owners add up in their own order, and with their own distance of the noise from its law
_HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Setting:
    """Hold what is given: who takes part, the vector, the ring, and what the noise must survive.

    `bits` of None are chosen.  `headroom` is k, the standard deviations of a coordinate that the ring holds.  What is
    None takes its default: delta min{N^-1.1, 10^-5}, the threshold a majority of honest clients, the tolerance
    `xnoise.default_tolerance`, which asks whether the graph is `sparse` as SecAgg+ has it, and the `reserve`, dropouts
    that the scheme `conservative` provides for, the tolerance.
    `one_block` rotates the vector at once, as the paper does.  `share` is the part of the budget that the bits of
    adaptive clipping get; 0 where the clip bound is fixed.  Given `orders`, epsilon is that of Renyi divergences at
    these, as in the paper; otherwise it is that of `dordis.privacy.gdp`.  `failure` is the chance that in some round of
    the run what the protocol rests on fails, a graph or a lot; the noise has to do with what it leaves of delta.
    `buckets` is the length to which updates are folded (`dordis.privacy.projection`), 0 if they are not.
    """

    participation: ParticipationSchedule
    dim: int
    clip: float = 1.0
    delta: float | None = None
    bits: int | None = None
    headroom: float = 4.0
    scheme: Scheme = Scheme.SINGLE
    threshold: int | None = None
    tolerance: int | None = None
    colluders: int = 1
    reserve: int | None = None
    one_block: bool = False
    share: float = 0.0
    orders: tuple[int, ...] | None = None
    failure: float = 0.0
    buckets: int = 0
    sparse: bool = False

    def __post_init__(self) -> None:
        accounting.check_delta(self.given_delta)
        check_failure(self.given_delta, self.failure)
        if not 1 <= self.dim <= LONGEST:
            raise InputError(f"a vector has 1 to 2^31 coordinates, not {self.dim}")
        check_buckets(self.dim, self.buckets)
        accounting.check_positive("the clip bound", self.clip)
        accounting.check_positive("the headroom k", self.headroom)
        if self.bits is not None and not 1 <= self.bits <= MOST_BITS:
            raise InputError(f"bits lie in 1..{MOST_BITS}, not at {self.bits}")
        if not 0 <= self.share < 1:
            raise InputError(f"the bits of adaptive clipping get a part of the budget in [0, 1), not {self.share}")
        if self.scheme is Scheme.NONE:
            raise InputError("without noise there is nothing to plan")
        n, t, T, T_C = self.clients, self.t, self.T, self.colluders
        if not 1 <= t <= n:
            raise InputError(f"the threshold lies in 1..{n}, not at {t}")
        if not 0 <= T_C < t:
            raise InputError(f"{T_C} colluders cannot be tolerated: they must be fewer than the threshold, {t}")
        if not 0 <= T <= n - t:
            raise InputError(
                f"the dropout tolerance {T} must lie in 0..{n - t}, the clients of a round less the threshold"
            )
        if self.noise_delta < 16 * self.distance:
            raise InputError(
                f"delta = {self.given_delta} is below what the noise tables prove: {16 * self.distance:.1g}"
            )

    @property
    def clients(self) -> int:
        """Return n, the clients of a round."""
        return self.participation.per_round

    @property
    def given_delta(self) -> float:
        """Return delta."""
        return accounting.default_delta(self.participation.population) if self.delta is None else self.delta

    @property
    def noise_delta(self) -> float:
        """Return what is left of delta for the noise."""
        return self.given_delta - self.failure

    @property
    def t(self) -> int:
        """Return the threshold of the shares."""
        return default_threshold(self.clients, self.colluders) if self.threshold is None else self.threshold

    @property
    def T(self) -> int:  # noqa: N802  the paper's name
        """Return how many clients may drop out of a round."""
        return default_tolerance(self.clients, self.t, self.sparse) if self.tolerance is None else self.tolerance

    @property
    def kept(self) -> int:
        """Return how many coordinates are summed."""
        return self.buckets or self.dim

    @cached_property
    def block(self) -> int:
        """Return the length of a rotated block."""
        return skellam.one_block(self.kept) if self.one_block else skellam.block_size(self.kept)

    @cached_property
    def padded(self) -> int:
        """Return the length of the summed vector with its padding."""
        return skellam.padded_length(self.kept, self.block)

    def noise(self, variance: Fraction, scheme: Scheme | None = None) -> NoisePlan:
        """Divide a central variance into components, as another scheme would if one is given."""
        scheme = scheme or self.scheme
        provided = self.T if self.reserve is None else self.reserve
        reserve = provided if scheme is Scheme.CONSERVATIVE else 0
        return NoisePlan(scheme, self.clients, self.T, self.colluders, variance, reserve=reserve)

    @cached_property
    def _probe(self) -> NoisePlan:
        return self.noise(_PROBE)

    @property
    def kappa(self) -> Fraction:
        """Return the noise left in a sum over the central variance, at most: if nobody drops out."""
        return self._probe.left(range(self.clients), b"") / _PROBE

    def ring(self, bits: int) -> Ring:
        """Return what a ring of so many bits must hold."""
        component = max((*self._probe.base, *self._probe.removable))
        return Ring(
            bits=bits,
            clients=self.clients,
            clip=self.clip,
            dim=self.padded,
            block=self.block,
            headroom=self.headroom,
            kappa=float(self.kappa),
            largest=float(LARGEST_VARIANCE * _PROBE / component) * _MARGIN,
            folded=bool(self.buckets),
        )

    @cached_property
    def distance(self) -> float:
        """Return the total variation between the noise that a client's releases get and its law, at most."""
        components = len(self._probe.base) + len(self._probe.removable)
        length = self.padded + (1 if self.share else 0)
        return accounting.SAMPLE_DISTANCE * self.participation.releases * length * self.clients * components

    def epsilon(self, sensitivity: Sensitivity, variance: float, *others: Event) -> float:
        """Return the epsilon of a run whose every round may count on noise of this variance, and has other releases."""
        update = SkellamSum(sensitivity.squared, sensitivity.l1, variance)
        run = self.participation.run(Composed((update, *others)))
        if self.orders is None:
            return accounting.epsilon(run, self.noise_delta, self.distance)
        return accounting.guarantee(run, self.noise_delta, self.orders, self.distance).epsilon

    def allowance(self, epsilon: float) -> float:
        """Return the theta^2 that every round of one client may cost: its part of the budget.

        The noise is allowed to be twice as far from its law as it is planned to be, for the sake of failed rounds; no
        more than half of delta goes into that, which bounds epsilon.
        """
        delta, distance = self.noise_delta, 2 * self.distance
        provable = min(accounting.check_epsilon(epsilon), math.log(delta / (4 * distance)))
        budget = gdp.theta_budget(provable, delta, distance)
        return budget / self.participation.releases * _SPARE

    def epsilon_of(self, allowance: float) -> float:
        """Return the epsilon of a run whose every round costs this theta^2."""
        return gdp.epsilon(gdp.repeated(allowance, self.participation.releases), self.noise_delta, self.distance)


@dataclass(frozen=True)
class Plan:
    """Hold what follows from a setting: `epsilon` is what is proved, `variance` sigma*^2 on the grid of 2^-20.

    `bit` is the clipping bit, a second release of every round, where there is one.
    """

    setting: Setting
    bits: int
    scale: float
    sensitivity: Sensitivity
    variance: Fraction
    epsilon: float
    bit: Bit | None = None

    def clipped(self, clip: float) -> "Plan":
        """Return the same for another clip bound: scale and noise, in real units, are in proportion to it."""
        scale = self.scale * self.setting.clip / clip
        return replace(self, setting=replace(self.setting, clip=clip), scale=scale)

    @cached_property
    def noise(self) -> NoisePlan:
        """Return the components of the noise."""
        return self.setting.noise(self.variance)

    @property
    def sigma_int(self) -> float:
        """Return the central standard deviation in integer units."""
        return math.sqrt(self.variance)

    @property
    def sigma(self) -> float:
        """Return the central standard deviation in real units."""
        return self.sigma_int / self.scale

    @property
    def multiplier(self) -> float:
        """Return z = sigma / Delta2, both in integer units."""
        return self.sigma_int / self.sensitivity.l2

    @property
    def trusted_multiplier(self) -> float | None:
        """Return the noise multiplier with which a trusted server proves the same; None if none does."""
        if not 0 < self.epsilon < math.inf:
            return None
        return accounting.gaussian_multiplier(self.epsilon, self.cap, self.setting.noise_delta)

    @property
    def times_trusted(self) -> float | None:
        """Return the noise left in a sum, nobody dropping out, over what a trusted server would add, as deviations."""
        if self.trusted_multiplier is None:
            return None
        return self.sigma * math.sqrt(self.setting.kappa) / (self.setting.clip * self.trusted_multiplier)

    @property
    def cap(self) -> int:
        """Return how many releases of one client are accounted for."""
        return self.setting.participation.releases

    @property
    def bytes_per_client(self) -> int:
        """Return the size of one masked update; keys and shares come on top."""
        return packed_size(self.setting.padded, self.bits)

    @property
    def signal_to_noise(self) -> float:
        """Return the norm of the sum over that of its noise in one round, if all updates have norm c and agree.

        Updates that have nothing in common give 1 / sqrt(n) of it.  The noise is what is left, and that of rounding.
        """
        n = self.setting.clients
        left = float(self.noise.left(range(n), b"")) + n / 4
        return self.scale * self.setting.clip * n / math.sqrt(left * self.setting.dim)

    def epsilon_if(self, dropped: int, scheme: Scheme) -> float | None:
        """Return epsilon if so many clients drop out of every round, or None where XNoise gives no output instead.

        The baselines get the same central variance; `conservative` provides for T dropouts.
        """
        setting = self.setting
        if not 0 <= dropped <= setting.clients:
            raise InputError(f"of {setting.clients} clients 0 to {setting.clients} drop out, not {dropped}")
        if scheme in XNOISE and dropped > setting.T:
            return None
        shares = setting.noise(_PROBE, scheme)
        charged = shares.charged(range(setting.clients - dropped), b"") / _PROBE
        others = (self.bit.release(charged * self.bit.variance),) if self.bit else ()
        return setting.epsilon(self.sensitivity, float(charged * self.variance), *others)


def plan(setting: Setting, epsilon: float) -> Plan:
    """Return the plan with the least noise, in real units, that keeps a budget.

    >>> run = ParticipationSchedule(population=1000, per_round=100, rounds=50)
    >>> least = plan(Setting(run, dim=1_018_174, delta=1e-3), epsilon=6)
    >>> least.bits, least.cap, round(least.sigma, 2)
    (16, 5, 1.34)
    """
    if setting.orders is None:
        return plan_within(setting, setting.allowance(epsilon))
    accounting.check_epsilon(epsilon)
    if setting.share:
        raise InputError("adaptive clipping is not planned by Renyi divergences: leave out the orders")

    def enough(sensitivity: Sensitivity, variance: float) -> bool:
        return variance > 0 and setting.epsilon(sensitivity, variance) <= epsilon

    return _least_noise(setting, enough, epsilon)


def plan_within(setting: Setting, allowance: float) -> Plan:
    """Return the plan with the least noise whose rounds cost a theta^2 of `allowance` each at most."""
    accounting.check_positive("what a round may cost", allowance)
    if not setting.share:
        return _least_noise(setting, _within(allowance), setting.epsilon_of(allowance))
    alone = _least_noise(setting, _within(allowance * (1 - setting.share)), setting.epsilon_of(allowance))
    bit = _bit(setting, alone.bits, 1 / math.sqrt(allowance * setting.share))
    left = allowance - accounting.theta_squared(bit.release())
    return _least_noise(replace(setting, bits=alone.bits), _within(left), setting.epsilon_of(allowance), bit)


def _within(allowance: float) -> skellam.Enough:
    """Return what tells whether a release costs a theta^2 of `allowance` at most."""
    return lambda changed, variance: variance > _HALF and gdp.theta_squared(changed.squared, variance) <= allowance


def _least_noise(setting: Setting, enough: skellam.Enough, epsilon: float, bit: Bit | None = None) -> Plan:
    def scale(ring: Ring) -> float:
        return skellam.largest_scale(ring, enough)

    ring = setting.ring(setting.bits or MOST_BITS)
    if not ring.allows(enough):
        raise InputError(_infeasible(setting, ring, enough, epsilon))
    if setting.bits is None:
        ring = skellam.enough_bits(ring, scale, lambda ring, s: math.sqrt(ring.room(s)) / s)
    s = scale(ring)
    sensitivity = ring.sensitivity(s)
    variance = _least_variance(lambda v: enough(sensitivity, float(v)), ring.room(s))
    proved = setting.epsilon(sensitivity, float(variance), *([bit.release()] if bit else []))
    return Plan(setting, ring.bits, s, sensitivity, variance, proved, bit)


def _bit(setting: Setting, bits: int, multiplier: float) -> Bit:
    return plan_bit(multiplier, setting.clients, bits, setting.headroom, setting.kappa)


def account(setting: Setting, sigma: float) -> Plan:
    """Return the plan, and with it epsilon, for central noise of standard deviation `sigma` in real units.

    >>> run = ParticipationSchedule(population=1000, per_round=100, rounds=50)
    >>> round(account(Setting(run, dim=1_018_174, delta=1e-3), sigma=1.34).epsilon, 1)
    6.0
    """
    accounting.check_positive("sigma", sigma)

    def scale(ring: Ring) -> float:
        return skellam.scale_of(ring, sigma)

    ring = setting.ring(setting.bits or MOST_BITS)
    if setting.bits is None:
        ring = skellam.enough_bits(ring, scale, lambda ring, s: ring.sensitivity(s).l2 / s)
    s = scale(ring)
    sensitivity = ring.sensitivity(s)
    variance = rounded_up(Fraction(s * sigma) ** 2)
    multiplier = math.sqrt(variance / sensitivity.squared)
    bit = _bit(setting, ring.bits, multiplier * math.sqrt(1 / setting.share - 1)) if setting.share else None
    proved = setting.epsilon(sensitivity, float(variance), *([bit.release()] if bit else []))
    return Plan(setting, ring.bits, s, sensitivity, variance, proved, bit)


def check_failure(delta: float, failure: float) -> None:
    """Refuse a delta that is not above the chance that what the protocol rests on fails."""
    if not 0 <= failure < delta:
        raise InputError(
            f"delta = {delta:.3g} is not above {failure:.3g}, the chance that the graph or the lots of a round fail, "
            "over the run: take a larger delta, fewer rounds, or the complete graph and the selection 'balanced'"
        )


def default_threshold(clients: int, colluders: int) -> int:
    """Return the least t with 2t > n + T_C: two quorums have an honest client in common."""
    return min(clients, (clients + max(0, colluders)) // 2 + 1)


def _least_variance(enough: Callable[[Fraction], bool], room: float) -> Fraction:
    """Return the least variance on the grid that is enough, knowing that `room` is."""
    low, high = 0, int(rounded_up(Fraction(room)) * GRID)  # more steps than a range may have
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(Fraction(middle, GRID)) else (middle, high)
    return Fraction(high, GRID)


def _infeasible(setting: Setting, ring: Ring, enough: skellam.Enough, epsilon: float) -> str:
    """Say which settings near this one are feasible."""
    fewest = skellam.fewest_bits(ring, enough)
    least = setting.epsilon(ring.sensitivity(0), ring.room(0))
    longest = bisect_left(range(1, ring.dim), True, key=lambda dim: not replace(ring, dim=dim).allows(enough))
    ways = [] if fewest is None else [f"the fewest bits that work are {fewest}"]
    if least < math.inf:
        ways.append(f"{ring.bits} bits give epsilon {least:.3g} at best")
    if longest:
        ways.append(f"{ring.bits} bits hold about {longest} coordinates, padding included")
    said = "; ".join(ways) or f"no number of bits up to {MOST_BITS} works"
    return f"epsilon = {epsilon:g} is out of reach with {ring.bits} bits for {ring.dim} coordinates: {said}"
