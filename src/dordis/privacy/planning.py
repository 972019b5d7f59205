"""From a privacy budget to the noise of a round, and back: the scale, bits, variances and participation cap of a run.

A `Setting` has the inputs, a `Plan` the results.  `plan` finds the least noise for a budget, `plan_for_cost` the least
noise for the cost of one round, and `account` the epsilon of given noise.  *Central* noise is the noise that epsilon is
computed from.  A theta^2 is a cost, the squared parameter of theta-GDP (`dordis.privacy.gdp`).
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from dordis.errors import InputError
from dordis.kernels.ring import packed_size
from dordis.privacy import accounting, gdp, scaling
from dordis.privacy.further_releases import FurtherValue, PlannedRelease, plan_release
from dordis.privacy.record_accounting import RecordSampling
from dordis.privacy.record_encoding import RecordEncoding, fine_scaled_clip, scale_for
from dordis.privacy.record_encoding import sensitivity as record_sensitivity
from dordis.privacy.scaling import MOST_BITS, Ring, Sensitivity
from dordis.privacy.setting import PROBE, SPARE, Setting
from dordis.privacy.skellam_noise import GRID, round_up_variance
from dordis.privacy.xnoise_components import NoisePlan, Scheme

XNOISE = (Scheme.SINGLE, Scheme.EXACT)
_HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Plan:
    """The plan for a setting: the bits, scale and noise of its rounds, and the `epsilon` that is proved for this noise.

    `variance` is sigma*^2, the variance of the *central noise*, from which epsilon is computed: a multiple of 2^-20 in
    integer units.  `further` are the releases of every round in addition to the update.  `records` is the encoding of
    sampled records if records are the unit of privacy.
    """

    setting: Setting
    bits: int
    scale: float
    sensitivity: Sensitivity
    variance: Fraction
    epsilon: float
    further: tuple[PlannedRelease, ...] = ()
    records: RecordEncoding | None = None

    def with_clip(self, clip: float) -> "Plan":
        """Return the plan for another clip bound; the noise in real units changes in proportion to the clip bound."""
        scale = self.scale * self.setting.clip / clip
        return replace(self, setting=replace(self.setting, clip=clip), scale=scale)

    def find_further(self, name: str) -> PlannedRelease | None:
        """Return the further release of this name, or None."""
        return next((planned for planned in self.further if planned.release.name == name), None)

    @cached_property
    def noise(self) -> NoisePlan:
        """Return the noise components that each client adds to the update, and which of them are removed."""
        return self.setting.noise(self.variance)

    @property
    def sigma_int(self) -> float:
        """Return the standard deviation of the central noise in integer units."""
        return math.sqrt(self.variance)

    @property
    def sigma(self) -> float:
        """Return the standard deviation of the central noise in real units."""
        return self.sigma_int / self.scale

    @property
    def multiplier(self) -> float:
        """Return the noise multiplier z: sigma divided by the l2-sensitivity Delta2, both in integer units."""
        return self.sigma_int / self.sensitivity.l2

    @property
    def trusted_multiplier(self) -> float | None:
        """Return the noise multiplier that a trusted server needs for `epsilon`; None if `epsilon` is 0 or infinite."""
        if not 0 < self.epsilon < math.inf:
            return None
        if self.records is not None:  # a trusted server would sample records in the same way
            return math.sqrt(self.variance / self.sensitivity.squared)
        return accounting.gaussian_multiplier(self.epsilon, self.cap, self.setting.noise_delta)

    @property
    def times_trusted(self) -> float | None:
        """Return how many times larger the noise on a sum is than that of a trusted server with the same epsilon.

        Standard deviations are compared, without dropouts.  The result is None if `epsilon` is 0 or infinite.
        """
        if self.trusted_multiplier is None:
            return None
        return self.sigma * math.sqrt(self.setting.kappa) / (self.setting.clip * self.trusted_multiplier)

    @property
    def cap(self) -> int:
        """Return how many rounds of one client, or how many planned events of one record, `epsilon` covers."""
        return self.setting.releases

    @property
    def bytes_per_client(self) -> int:
        """Return the size of one masked update in bytes, without keys and shares."""
        return packed_size(self.setting.padded, self.bits)

    @property
    def signal_to_noise(self) -> float:
        """Return the norm of a round's sum divided by the norm of its noise, for equal updates with norm `clip`.

        For orthogonal updates of n clients the quotient is smaller by a factor of sqrt(n).  The noise includes rounding
        errors.
        """
        n = self.setting.clients
        left = float(self.noise.variance_left(range(n), b"")) + n / 4
        summed = n * self.records.batch if self.records else n
        return self.scale * self.setting.clip * summed / math.sqrt(left * self.setting.dim)

    def epsilon_with_dropout(self, dropped: int, scheme: Scheme) -> float | None:
        """Return the epsilon of the run with another noise scheme, if `dropped` clients drop out of every round.

        All schemes get the planned variance sigma*^2.  With `conservative`, shares of noise are so large that
        `Setting.reserve` clients may drop out.  The result is None if XNoise gives no output with so many dropouts.
        """
        setting = self.setting
        if not 0 <= dropped <= setting.clients:
            raise InputError(f"of {setting.clients} clients 0 to {setting.clients} drop out, not {dropped}")
        if scheme in XNOISE and dropped > setting.T:
            return None
        shares = setting.noise(PROBE, scheme)
        charged = shares.charged_variance(range(setting.clients - dropped), b"") / PROBE
        others = [planned.event(charged * planned.variance) for planned in self.further]
        return setting.epsilon(self.sensitivity, float(charged * self.variance), *others)


def plan(setting: Setting, epsilon: float) -> Plan:
    """Return the plan with the least noise, in real units, within the budget `epsilon`; raise InputError if none fits.

    >>> from dordis.privacy.accounting import ParticipationSchedule
    >>> run = ParticipationSchedule(population=1000, per_round=100, rounds=50)
    >>> least = plan(Setting(run, dim=1_018_174, delta=1e-3), epsilon=6)
    >>> least.bits, least.cap, round(least.sigma, 2)
    (16, 5, 1.34)
    """
    if setting.orders is None:
        return plan_for_cost(setting, setting.allowance(epsilon))
    accounting.check_epsilon(epsilon)
    if setting.further:
        raise InputError("further releases and adaptive clipping are not planned by Renyi divergences: omit the orders")

    def enough(sensitivity: Sensitivity, variance: float) -> bool:
        return variance > 0 and setting.epsilon(sensitivity, variance) <= epsilon

    return _least_noise(setting, enough, epsilon)


def plan_for_cost(setting: Setting, allowance: float) -> Plan:
    """Return the plan with the least noise at which a round costs at most `allowance`, a theta^2."""
    accounting.check_positive("the cost of a round", allowance)
    if setting.records is not None:
        return _record_plan(setting, setting.records, allowance)
    if not setting.further:
        return _least_noise(setting, _has_cost_within(allowance), setting.epsilon_for_cost(allowance))
    alone = _least_noise(
        setting, _has_cost_within(allowance * (1 - setting.share)), setting.epsilon_for_cost(allowance)
    )
    further = _plan_further(setting, alone.bits, lambda value: 1 / math.sqrt(allowance * value.share))
    left = allowance - _further_cost(further)
    return _least_noise(
        replace(setting, bits=alone.bits), _has_cost_within(left), setting.epsilon_for_cost(allowance), further
    )


def _record_plan(setting: Setting, sampled: RecordSampling, allowance: float) -> Plan:
    """Return the plan with records as the unit of privacy, at the largest scale whose noise the sampler can draw."""
    largest, part = setting.ring(MOST_BITS).largest, allowance * (1 - setting.share)
    for scaled_clip in _halved_scales(setting):
        squared = record_sensitivity(scaled_clip, setting.padded)
        variance = round_up_variance(Fraction(squared) / Fraction(part) + _HALF)
        if variance <= largest:
            break
    batch = setting.clients * sampled.batch
    least = _record_bits(setting, sampled, scaled_clip, float(setting.kappa * variance))
    bits = max(1, least) if setting.bits is None else setting.bits
    if not least <= bits <= MOST_BITS:
        raise InputError(f"{bits} bits do not hold sums of {batch:.0f} records and their noise: {least} do")
    encoding = RecordEncoding.for_scale(sampled, scaled_clip, setting.block)
    encoding.check(setting.block)
    sensitivity, further = Sensitivity(squared, setting.padded), tuple[PlannedRelease, ...]()
    if setting.further:
        counted = math.ceil(batch + 6 * math.sqrt(batch))
        further = _plan_further(
            setting, bits, lambda value: 1 / math.sqrt(allowance * value.share * SPARE), summed=counted
        )
        part = allowance - _further_cost(further)
        variance = round_up_variance(Fraction(squared) / Fraction(part) + _HALF)
    proved = setting.epsilon_for_cost(allowance)
    return Plan(setting, bits, scaled_clip / setting.clip, sensitivity, variance, proved, further, encoding)


def record_scale(setting: Setting, sampled: RecordSampling, variance: Callable[[float], float]) -> float:
    """Return the largest s c, scale times clip bound, at which a sum of records and its noise fit 32 bits.

    Only the values of `_halved_scales` are tried.  `variance` returns the noise variance in integer units at a given
    s c.  Raise InputError if none of these values fits.
    """
    for scaled_clip in _halved_scales(setting):
        least = _record_bits(setting, sampled, scaled_clip, variance(scaled_clip))
        if least <= MOST_BITS:
            return scaled_clip
    batch = setting.clients * sampled.batch
    raise InputError(f"{MOST_BITS} bits do not hold sums of {batch:.0f} records and their noise: {least} do")


def _halved_scales(setting: Setting) -> Iterator[float]:
    """Yield values of s c, scale times clip bound: the first makes rounding errors negligible, then each is halved."""
    wanted = 2 * fine_scaled_clip(setting.padded)
    while wanted >= 1:
        wanted /= 2
        length, shift = scale_for(wanted, setting.block)
        yield math.sqrt(setting.block) * length * 2.0**-shift


def _record_bits(setting: Setting, sampled: RecordSampling, scaled_clip: float, variance: float) -> int:
    """Return the number of bits that hold a sum of L + 6 sqrt L equal records and its noise of variance `variance`.

    L is the expected number of sampled records of all clients of a round.  `scaled_clip` is the scale times the clip
    bound.
    """
    batch = setting.clients * sampled.batch
    reach = scaled_clip * (batch + 6 * math.sqrt(batch))
    deviation = math.sqrt(reach**2 / setting.block + setting.clients / 4 + variance)
    return math.ceil(math.log2(2 * setting.headroom * deviation))


def _has_cost_within(allowance: float) -> scaling.Enough:
    """Return a predicate that tells whether the theta^2 of a release is at most `allowance`."""
    return lambda changed, variance: variance > _HALF and gdp.theta_squared(changed.squared, variance) <= allowance


def _least_noise(
    setting: Setting, enough: scaling.Enough, epsilon: float, further: tuple[PlannedRelease, ...] = ()
) -> Plan:
    def scale(ring: Ring) -> float:
        return scaling.largest_scale(ring, enough)

    ring = setting.ring(setting.bits or MOST_BITS)
    if not ring.allows(enough):
        raise InputError(_describe_infeasible(setting, ring, enough, epsilon))
    if setting.bits is None:
        ring = scaling.enough_bits(ring, scale, lambda ring, s: math.sqrt(ring.room(s)) / s)
    s = scale(ring)
    sensitivity = ring.sensitivity(s)
    variance = _least_variance(lambda v: enough(sensitivity, float(v)), ring.room(s))
    proved = setting.epsilon(sensitivity, float(variance), *(planned.event() for planned in further))
    return Plan(setting, ring.bits, s, sensitivity, variance, proved, further)


def _plan_further(
    setting: Setting, bits: int, multiplier: Callable[[FurtherValue], float], summed: int | None = None
) -> tuple[PlannedRelease, ...]:
    """Return the plans of all further releases, each with the noise multiplier that `multiplier` returns for it.

    A sum has `summed` values, by default one for each client.
    """
    count = setting.clients if summed is None else summed
    return tuple(
        plan_release(value, multiplier(value), count, bits, setting.headroom, setting.kappa)
        for value in setting.further
    )


def _further_cost(further: tuple[PlannedRelease, ...]) -> float:
    """Return the sum of the theta^2 of further releases."""
    return math.fsum(accounting.theta_squared(planned.event()) for planned in further)


def account(setting: Setting, sigma: float) -> Plan:
    """Return the plan, with its epsilon, for central noise whose standard deviation is `sigma` in real units.

    >>> from dordis.privacy.accounting import ParticipationSchedule
    >>> run = ParticipationSchedule(population=1000, per_round=100, rounds=50)
    >>> round(account(Setting(run, dim=1_018_174, delta=1e-3), sigma=1.34).epsilon, 1)
    6.0
    """
    accounting.check_positive("sigma", sigma)

    def scale(ring: Ring) -> float:
        return scaling.scale_for_sigma(ring, sigma)

    ring = setting.ring(setting.bits or MOST_BITS)
    if setting.bits is None:
        ring = scaling.enough_bits(ring, scale, lambda ring, s: ring.sensitivity(s).l2 / s)
    s = scale(ring)
    sensitivity = ring.sensitivity(s)
    variance = round_up_variance(Fraction(s * sigma) ** 2)
    multiplier = math.sqrt(variance / sensitivity.squared)
    share = setting.share
    further = _plan_further(
        setting, ring.bits, lambda value: multiplier * math.sqrt((1 / share - 1) * (share / value.share))
    )
    proved = setting.epsilon(sensitivity, float(variance), *(planned.event() for planned in further))
    return Plan(setting, ring.bits, s, sensitivity, variance, proved, further)


def _least_variance(enough: Callable[[Fraction], bool], room: float) -> Fraction:
    """Return the least multiple of 2^-20 for which `enough` is true; the caller ensures that it is true for `room`."""
    low, high = 0, int(round_up_variance(Fraction(room)) * GRID)  # not by `bisect`: no `range` is that long
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(Fraction(middle, GRID)) else (middle, high)
    return Fraction(high, GRID)


def _describe_infeasible(setting: Setting, ring: Ring, enough: scaling.Enough, epsilon: float) -> str:
    """Return an error message that names a number of bits, an epsilon or a number of coordinates that would work."""
    fewest = scaling.fewest_bits(ring, enough)
    least = setting.epsilon(ring.sensitivity(0), ring.room(0))
    longest = bisect_left(range(1, ring.dim), True, key=lambda dim: not replace(ring, dim=dim).allows(enough))
    ways = [] if fewest is None else [f"the fewest bits that work are {fewest}"]
    if least < math.inf:
        ways.append(f"{ring.bits} bits give epsilon {least:.3g} at best")
    if longest:
        ways.append(f"{ring.bits} bits hold about {longest} coordinates, padding included")
    said = "; ".join(ways) or f"no number of bits up to {MOST_BITS} works"
    return f"epsilon = {epsilon:g} is out of reach with {ring.bits} bits for {ring.dim} coordinates: {said}"
