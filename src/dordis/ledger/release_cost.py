"""The cost of a noisy sum as data, so that it can be recomputed without the code of its mechanism.

- The cost of Skellam noise, the protocol's own, follows from the sensitivity Delta2, the length and the variance that
  counts for privacy.
- For other mechanisms the ledger stores a price list: the cost for each variance that may count with up to T dropouts;
  rounds with more have no output.  The variance is that of the protocol's noise, or of noise shares that clients add
  outside the protocol, which the ledger lists under the scheme `orig`.  A mechanism with neither, such as the Gaussian
  baselines, has one price, which must hold for every dropout.

The samplers of Skellam and discrete Gaussian noise deviate slightly from their laws; this distance is charged.  Other
noise is charged as its mechanism states: the Gaussian baselines as if floats were real numbers.
"""

from collections.abc import Sequence
from dataclasses import astuple
from fractions import Fraction
from functools import lru_cache

import msgspec

from dordis.errors import InputError, ParametersRefused
from dordis.privacy import accounting
from dordis.privacy.accounting import Composed, DiscreteGaussianSum, Event, Gaussian, ReleaseCost, Repeated, SkellamSum
from dordis.privacy.mechanisms import Mechanism, find_builtin_mechanism, mechanism_name
from dordis.privacy.mechanisms.distributed import DSkellam
from dordis.privacy.scaling import Sensitivity
from dordis.privacy.xnoise_components import NoisePlan, Scheme
from dordis.protocols.encoded_sums import check_agreed, check_scheme, mechanism_of
from dordis.protocols.parameters import Parameters

_LARGEST, _MOST_TIMES = 1e300, 2**53
_CLOSE = Fraction(1, 2**40)


class _Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    times: int


class SkellamTerm(_Term, frozen=True, tag="skellam"):
    """The cost of `times` sums under Skellam noise."""

    event: SkellamSum


class DiscreteGaussianTerm(_Term, frozen=True, tag="discrete-gaussian"):
    """The cost of `times` sums under discrete Gaussian noise."""

    event: DiscreteGaussianSum


class GaussianTerm(_Term, frozen=True, tag="gaussian"):
    """The cost of `times` releases under Gaussian noise."""

    event: Gaussian


Term = SkellamTerm | DiscreteGaussianTerm | GaussianTerm


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cost of a release if this variance of the noise counts for privacy."""

    variance: Fraction
    terms: tuple[Term, ...]

    @property
    def event(self) -> Event:
        """Return the composition of all terms as one event."""
        return Composed(tuple(Repeated(term.event, term.times) for term in self.terms))


class NoisySum(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One noisy sum over one or several chunks: its sensitivity, and the least noise variance of these chunks.

    `l2_squared` and `l1` are Delta2^2 and Delta1, the sensitivities in the norms L2 (squared) and L1, in integer units;
    `variance` is the one that counts for privacy.
    `mechanism` is None for Skellam noise, the protocol's own.  If `brought`, clients add the noise outside the
    protocol, so that the protocol's outputs do not include it.
    """

    l2_squared: int
    l1: float
    dim: int
    chunks: tuple[int, ...]
    variance: Fraction
    mechanism: str | None = None
    prices: tuple[Price, ...] = ()
    brought: bool = False

    @property
    def mechanism_name(self) -> str:
        """Return the name of the mechanism of the sum."""
        return self.mechanism or mechanism_name(DSkellam)

    def cost(self, variance: Fraction, samples: int) -> ReleaseCost:
        """Return the cost of the sum if this variance counts for privacy, for noise made of `samples` samples.

        Raise InputError if the price list lacks the variance.
        """
        distance = samples * accounting.SAMPLE_DISTANCE
        if self.mechanism is None:
            return ReleaseCost(SkellamSum(self.l2_squared, self.l1, float(variance)), distance)
        for price in self.prices:
            if price.variance == variance:
                return ReleaseCost(price.event, distance)
        raise InputError(f"the mechanism '{self.mechanism}' has no price for noise of variance {variance}")


def priced_mechanism(parameters: Parameters, given: Mechanism | None = None) -> Mechanism | None:
    """Return the given mechanism, or else that of the parameters, if it has a price list; otherwise None."""
    if given is not None:
        check_agreed(parameters, given)
        check_scheme(parameters, given)
    elif find_builtin_mechanism(parameters.encoding.mechanism).has_price_list:
        given = mechanism_of(parameters)
    return given if given is not None and given.has_price_list else None


def noise_plans(parameters: Parameters, priced: Mechanism | None) -> tuple[NoisePlan, ...]:
    """Return the noise plan of each chunk: the protocol's, or that of noise which clients add outside the protocol."""
    if priced is None or not priced.share:
        return parameters.plans
    if parameters.encoding.further_releases:
        raise ParametersRefused(
            f"clients add the noise of '{priced.name}' themselves, and none to further releases: fix privacy.clip, so "
            "that there is no clipping bit, and use an application without further releases"
        )
    n, T, T_C = parameters.n_max, parameters.tolerance, parameters.colluders
    plan = NoisePlan(Scheme.ORIG, n, T, T_C, (n - T_C) * priced.share, parameters.fraction, parameters.reserve)
    return (plan,) * len(parameters.chunks)


def noisy_sums(
    plans: Sequence[NoisePlan], sums: Sequence[tuple[Sensitivity, Sequence[int]]], priced: Mechanism | None
) -> tuple[NoisySum, ...]:
    """Return the noisy sums of a round: the first with the price list, if any, the others under Skellam noise."""
    releases: list[NoisySum] = []
    for changed, chunks in sums:
        noise = [plans[chunk] for chunk in chunks]
        release = NoisySum(changed.squared, changed.l1, changed.dim, tuple(chunks), _least(noise))
        if priced and not releases:
            prices = tuple(Price(variance, price_terms(priced.release(variance))) for variance in _countable(noise))
            changes = {"mechanism": priced.name, "prices": prices, "brought": bool(priced.share)}
            release = msgspec.structs.replace(release, **changes)
        releases.append(release)
    return tuple(releases)


def price_terms(event: Event, times: int = 1) -> tuple[Term, ...]:
    """Return the terms of an event, repeated `times` times; raise InputError for an event without a known bound."""
    match event:
        case SkellamSum(l2_squared, l1, variance):
            return (SkellamTerm(times, SkellamSum(float(l2_squared), float(l1), float(variance))),)
        case DiscreteGaussianSum(l2, l1, clients, scale, dim):
            shares = DiscreteGaussianSum(float(l2), float(l1), int(clients), float(scale), int(dim))
            return (DiscreteGaussianTerm(times, shares),)
        case Gaussian(multiplier):
            return (GaussianTerm(times, Gaussian(float(multiplier))),)
        case Repeated(inner, count):
            return price_terms(inner, times * int(count))
        case Composed(events):
            return tuple(term for inner in events for term in price_terms(inner, times))
    raise InputError(f"no bound is known for {type(event).__name__}")


def check_release(release: NoisySum, plans: Sequence[NoisePlan], least: Fraction) -> None:
    """Raise InputError unless a sum's sensitivity is valid and its variance is the least of its chunks."""
    if release.l2_squared < (0 if release.prices else 1) or release.dim < 1:
        raise InputError(f"a sum has Delta2^2 and a length of 1 or more, not {release.l2_squared} and {release.dim}")
    if release.l1 != Sensitivity(release.l2_squared, release.dim).l1:
        raise InputError("Delta1 is not what Delta2 and the length give")
    if release.variance != least:
        raise InputError("the reserved variance is not the least that the noise of the chunks allows")
    check_noise(release, plans)


def check_noise(release: NoisySum, plans: Sequence[NoisePlan]) -> None:
    """Raise InputError unless the cost of a sum follows from the noise plans of its chunks or a valid price list."""
    if release.mechanism is not None and not release.prices:
        raise InputError(f"the sum under '{release.mechanism}' has no prices: restore the ledger from a backup")
    if release.mechanism is None and (release.prices or release.brought):
        raise InputError("a sum under Skellam noise has no prices: restore the ledger from a backup")
    if release.brought and any(plan.scheme is not Scheme.ORIG for plan in plans):
        raise InputError("noise that clients add themselves has the scheme 'orig'")
    variances = [price.variance for price in release.prices]
    if release.prices and variances != _countable(plans):
        raise InputError("the price list of a sum does not have the variances that may count in its chunks")
    for price in release.prices:
        check_price(price, plans[0].clients, price.variance if release.brought else None)


def check_price(price: Price, clients: int, brought: Fraction | None = None) -> None:
    """Raise InputError if a price has no terms, a number out of range, or an unknown divergence."""
    if not price.terms:
        raise InputError("a price has no terms, so the release would cost nothing")
    for term in price.terms:
        sensible = all(0 <= number <= _LARGEST for number in astuple(term.event))
        if not sensible or not 1 <= term.times <= _MOST_TIMES:
            raise InputError("the numbers of an event are finite and at least 0")
        if isinstance(term, DiscreteGaussianTerm):
            check_shares(term.event, clients, brought)
        if not (accounting.renyi_divergences(term.event) >= 0).all():
            raise InputError("the divergence of an event is at least 0")


def check_shares(event: DiscreteGaussianSum, clients: int, brought: Fraction | None) -> None:
    """Raise InputError if a price assumes noise of more clients than take part, or more noise than they add."""
    if event.clients > clients:
        raise InputError(f"a price has noise of {event.clients} clients, and only {clients} take part")
    if brought is not None and event.clients * event.scale**2 > brought * (1 + _CLOSE):
        raise InputError("a price has more noise than the sum")


def counted_variance(plan: NoisePlan, dropped: int | None) -> Fraction:
    """Return the variance that counts for privacy after `dropped` dropouts; if None, the least for up to T dropouts."""
    return _reserved(plan) if dropped is None else plan.charged_variance(range(plan.clients - dropped), b"")


def _least(plans: Sequence[NoisePlan]) -> Fraction:
    return min(_reserved(plan) for plan in plans)


def _countable(plans: Sequence[NoisePlan]) -> list[Fraction]:
    return sorted({variance for plan in set(plans) for variance in _charged(plan)})


@lru_cache(maxsize=1 << 10)
def _reserved(plan: NoisePlan) -> Fraction:
    return plan.reserved_variance()


@lru_cache(maxsize=1 << 10)
def _charged(plan: NoisePlan) -> frozenset[Fraction]:
    """Return the variances that count for privacy after 0, 1, ..., T dropouts, whichever clients drop out."""
    return frozenset(plan.charged_variance(range(plan.clients - dropped), b"") for dropped in range(plan.tolerance + 1))
