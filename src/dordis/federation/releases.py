"""What a noisy sum costs, as data: enough to recompute it for ever without the code of the mechanism that made it.

- Skellam noise, the protocol's own, follows from Delta2, the length and the variance that counts.
- Discrete Gaussian noise (DDGauss), a share from every client, follows from the same and the share, which is in the
  name of the mechanism.  The ledger writes it down as the scheme `orig`, which it is; the protocol adds none.
- Of every other mechanism the ledger keeps a price list: what its `release` says for each variance of the protocol's
  noise that may come to count with |D| <= T; no round has an output with more dropouts.  Where a mechanism brings its
  own noise, like the Gaussian baselines, the protocol adds none: there is one price, and it must hold whoever drops.

The samplers of Skellam and discrete Gaussian noise are off their laws by a little, which is charged.  What a mechanism
draws itself is taken to be what it says: the Gaussian baselines are charged as if their floats were real numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import msgspec

from dordis.errors import InputError
from dordis.privacy import accounting
from dordis.privacy.accounting import (
    Composed,
    DiscreteGaussianSum,
    Event,
    Gaussian,
    PoissonSampled,
    Repeated,
    SkellamSum,
)
from dordis.privacy.discrete_gaussian import LEAST_SCALE
from dordis.privacy.encoding import Grid
from dordis.privacy.gaussian import LocalGaussian
from dordis.privacy.mechanism import Mechanism
from dordis.privacy.skellam import Sensitivity
from dordis.privacy.xnoise import NoisePlan, Scheme
from dordis.protocols.distributed_dp import check_agreed, check_scheme
from dordis.protocols.parameters import Parameters

NONE, SKELLAM, DDGAUSS = "none", "skellam", "ddgauss"
CENTRAL, LOCAL = "central-gaussian", "local-gaussian"
DISCRETE_GAUSSIAN_DISTANCE = 2.0**-105
"""Total variation between one sample of `dordis.privacy.discrete_gaussian_noise` and its law, at any variance."""
LEAST_SHARE = Fraction(LEAST_SCALE) ** 2
_LARGEST, _MOST_TIMES = 1e300, 2**53


class Cost(NamedTuple):
    """A release as it is accounted for, and the total variation between the noise in it and the law of that noise."""

    event: Event
    distance: float


class _Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    times: int


class SkellamTerm(_Term, frozen=True, tag="skellam"):
    """A sum under Skellam noise, some number of times."""

    event: SkellamSum


class DiscreteGaussianTerm(_Term, frozen=True, tag="discrete-gaussian"):
    """A sum under discrete Gaussian noise, some number of times."""

    event: DiscreteGaussianSum


class GaussianTerm(_Term, frozen=True, tag="gaussian"):
    """A release under Gaussian noise, some number of times."""

    event: Gaussian


Term = SkellamTerm | DiscreteGaussianTerm | GaussianTerm


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a release costs where this variance of the protocol's noise counts."""

    variance: Fraction
    terms: tuple[Term, ...]

    @property
    def event(self) -> Event:
        """Return all terms as one event."""
        return Composed(tuple(Repeated(term.event, term.times) for term in self.terms))


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One noisy sum, over one chunk or several: what a client can change in all of them, and the least noise of any.

    `l2_squared` is Delta2^2 and `l1` is Delta1, in integer units; `variance` is what privacy may count on.
    `mechanism` is None for Skellam noise, the protocol's own.
    """

    l2_squared: int
    l1: float
    dim: int
    chunks: tuple[int, ...]
    variance: Fraction
    mechanism: str | None = None
    prices: tuple[Price, ...] = ()

    def cost(self, variance: Fraction, samples: int) -> Cost:
        """Return what the sum costs where this variance counts and the noise in it is made of so many samples."""
        if self.mechanism is None:
            event = SkellamSum(self.l2_squared, self.l1, float(variance))
            return Cost(event, accounting.sampler_distance(samples))
        if share := share_of(self.mechanism):
            honest = math.floor(variance / share)
            if honest < 1:
                raise InputError(f"a sum under '{self.mechanism}' needs more survivors than there may be colluders")
            bound = Sensitivity(self.l2_squared, self.dim)
            sum_of_shares = DiscreteGaussianSum(bound.l2, self.l1, honest, math.sqrt(share), self.dim)
            return Cost(sum_of_shares, samples * DISCRETE_GAUSSIAN_DISTANCE)
        for price in self.prices:
            if price.variance == variance:
                return Cost(price.event, accounting.sampler_distance(samples))
        raise InputError(f"the mechanism '{self.mechanism}' has no price for noise of variance {variance}")


def plans_of(parameters: Parameters) -> tuple[NoisePlan, ...]:
    """Return the noise plan of each chunk: the protocol's, or that of the discrete Gaussians that clients bring."""
    share = share_of(parameters.encoding.mechanism)
    if share is None:
        return parameters.plans
    if parameters.scheme != Scheme.NONE.value or parameters.encoding.bit:
        raise InputError("discrete Gaussian noise comes with no other noise, and there is none of it on a clipping bit")
    n, T, T_C = len(parameters.clients), parameters.tolerance, parameters.colluders
    plan = NoisePlan(Scheme.ORIG, n, T, T_C, (n - T_C) * share, parameters.fraction, parameters.reserve)
    return (plan,) * len(parameters.chunks)


def released(
    parameters: Parameters,
    plans: Sequence[NoisePlan],
    sums: Sequence[tuple[Sensitivity, Sequence[int]]],
    mechanism: Mechanism | None = None,
) -> tuple[Release, ...]:
    """Write down the sums of a round; a price list is for the first, and others are under Skellam noise then."""
    name, priced = parameters.encoding.mechanism, _to_be_priced(parameters, mechanism)
    found = []
    for place, (changed, chunks) in enumerate(sums):
        noise = [plans[chunk] for chunk in chunks]
        under = None if name == SKELLAM or (priced and place) else name
        prices = prices_of(priced, noise) if priced and not place else ()
        bound = (changed.squared, changed.l1, changed.dim)
        found.append(Release(*bound, tuple(chunks), _least(noise), under, prices))
    return tuple(found)


def _to_be_priced(parameters: Parameters, given: Mechanism | None) -> Mechanism | None:
    """Return the mechanism whose prices are needed, or None where the name says it all; refuse what has no epsilon."""
    name = parameters.encoding.mechanism
    if name == NONE:
        raise InputError(f"the ledger knows no epsilon of the mechanism '{NONE}': such a round runs without a ledger")
    if given is not None:
        check_agreed(parameters, given)
        check_scheme(parameters, given)
    if name == SKELLAM or share_of(name) is not None:
        return None
    if given is None:
        given = _local_gaussian(parameters)
    if given is None:
        raise InputError(f"the ledger knows no epsilon of the mechanism '{name}' by its name: pass the mechanism too")
    return given


def prices_of(mechanism: Mechanism, plans: Sequence[NoisePlan]) -> tuple[Price, ...]:
    """Ask a mechanism what it costs at each variance that may count with |D| <= T, in any of these chunks."""
    return tuple(Price(variance, terms_of(mechanism.release(variance))) for variance in _countable(plans))


def terms_of(event: Event, times: int = 1) -> tuple[Term, ...]:
    """Write an event down as the terms that it is composed of."""
    match event:
        case SkellamSum(l2_squared, l1, variance):
            return (SkellamTerm(times, SkellamSum(float(l2_squared), float(l1), float(variance))),)
        case DiscreteGaussianSum(l2, l1, clients, scale, dim):
            shares = DiscreteGaussianSum(float(l2), float(l1), int(clients), float(scale), int(dim))
            return (DiscreteGaussianTerm(times, shares),)
        case Gaussian(multiplier):
            return (GaussianTerm(times, Gaussian(float(multiplier))),)
        case Repeated(inner, count):
            return terms_of(inner, times * int(count))
        case Composed(events):
            return tuple(term for inner in events for term in terms_of(inner, times))
        case PoissonSampled():
            raise InputError("the server knows who takes part: the ledger takes no event that sampling amplifies")
    raise InputError(f"no bound is known for {type(event).__name__}")


def share_of(mechanism: str | None) -> Fraction | None:
    """Return the variance of each client's own discrete Gaussian noise, if that is what the name says.

    >>> share_of("ddgauss:5/4"), share_of("skellam")
    (Fraction(5, 4), None)
    """
    name, _, written = (mechanism or SKELLAM).partition(":")
    if name != DDGAUSS:
        return None
    try:
        share = Fraction(written)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if share < LEAST_SHARE or mechanism != f"{DDGAUSS}:{share}":
        raise InputError(f"discrete Gaussian noise has a name like '{DDGAUSS}:5/4', its variance, not '{mechanism}'")
    return share


def check_release(release: Release, plans: Sequence[NoisePlan]) -> None:
    """A release has a sensitivity, the Delta1 that follows from it, and the least variance of its chunks."""
    if release.l2_squared < (0 if release.prices else 1) or release.dim < 1:
        raise InputError(f"a sum has Delta2^2 and a length of 1 or more, not {release.l2_squared} and {release.dim}")
    if release.l1 != Sensitivity(release.l2_squared, release.dim).l1:
        raise InputError("Delta1 is not what Delta2 and the length give")
    if release.variance != _least(plans):
        raise InputError("the reserved variance is not the least that the noise of the chunks allows")
    check_noise(release, plans)


def check_noise(release: Release, plans: Sequence[NoisePlan]) -> None:
    """What the sum costs can be computed: from the plans of its chunks, or else from a list of prices."""
    share = share_of(release.mechanism)
    if release.mechanism in (NONE, SKELLAM):
        raise InputError(f"no sum is under a mechanism that is called '{release.mechanism}'")
    if (release.mechanism is not None and share is None) != bool(release.prices):
        raise InputError("a sum has prices if its noise is neither Skellam nor discrete Gaussian, and only then")
    if share is not None and any((plan.scheme, plan.base) != (Scheme.ORIG, (share,)) for plan in plans):
        raise InputError(f"'{release.mechanism}' is not the noise of these chunks")
    variances = [price.variance for price in release.prices]
    if release.prices and variances != _countable(plans):
        raise InputError("the prices of a sum are not for the variances that may count in its chunks")
    for price in release.prices:
        check_price(price, plans[0].clients)


def check_price(price: Price, clients: int) -> None:
    """A price has terms, of numbers that make sense, and its divergence is known."""
    if not price.terms:
        raise InputError("a release that costs nothing is no release")
    for term in price.terms:
        sensible = all(0 <= number <= _LARGEST for number in astuple(term.event))
        if not sensible or not 1 <= term.times <= _MOST_TIMES:
            raise InputError("the numbers of an event are finite, and not below 0")
        if isinstance(term, DiscreteGaussianTerm) and term.event.clients > clients:
            raise InputError("there is noise of more clients than take part")
        if not (accounting.curve(term.event) >= 0).all():
            raise InputError("the divergence of an event is a number from 0 on")


def _local_gaussian(parameters: Parameters) -> LocalGaussian | None:
    encoding = parameters.encoding
    name, _, written = encoding.mechanism.partition(":")
    if name != LOCAL:
        return None
    try:
        sigma = float(written)
    except ValueError:
        sigma = 0.0
    local = LocalGaussian(Grid(parameters.dim, encoding.block, encoding.scale, parameters.bits), encoding.clip, sigma)
    if local.name != encoding.mechanism:
        raise InputError(f"local noise is named like '{local.name}', with its sigma, not '{encoding.mechanism}'")
    return local


def _least(plans: Sequence[NoisePlan]) -> Fraction:
    return min(_reserved(plan) for plan in plans)


def _countable(plans: Sequence[NoisePlan]) -> list[Fraction]:
    return sorted({variance for plan in set(plans) for variance in _charged(plan)})


@lru_cache(maxsize=1 << 10)
def _reserved(plan: NoisePlan) -> Fraction:
    return plan.reserved()


@lru_cache(maxsize=1 << 10)
def _charged(plan: NoisePlan) -> frozenset[Fraction]:
    """Return what counts for each number of dropouts; it does not depend on who they are."""
    return frozenset(plan.charged(range(plan.clients - dropped), b"") for dropped in range(plan.tolerance + 1))
