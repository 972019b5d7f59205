"""What a noisy sum costs, as data: enough to recompute it for ever without the code of the mechanism that made it.

- Skellam noise, the protocol's own, follows from Delta2, the length and the variance that counts.
- Of every other mechanism the ledger keeps a price list: what its `release` says for each variance of the noise that
  may come to count with |D| <= T; no round has an output with more dropouts.  That is the protocol's noise, or shares
  that every client brings and that add up like those of the scheme `orig`, as which the ledger writes them down.  Where
  there is neither, as with the Gaussian baselines, there is one price, and it must hold whoever drops.

The samplers of Skellam and discrete Gaussian noise are off their laws by a little, which is charged.  Other noise that
a mechanism draws is taken to be what it says: the Gaussian baselines are charged as if their floats were real numbers.
"""

from collections.abc import Sequence
from dataclasses import astuple
from fractions import Fraction
from functools import lru_cache

import msgspec

from dordis.errors import InputError, ParametersRefused
from dordis.privacy import accounting
from dordis.privacy.accounting import Composed, DiscreteGaussianSum, Event, Gaussian, ReleaseCost, Repeated, SkellamSum
from dordis.privacy.mechanisms import known
from dordis.privacy.mechanisms.mechanism import Mechanism, name_of
from dordis.privacy.mechanisms.skellam import DSkellam
from dordis.privacy.skellam import Sensitivity
from dordis.privacy.xnoise import NoisePlan, Scheme
from dordis.protocols.distributed_dp import check_agreed, check_scheme, mechanism_of
from dordis.protocols.parameters import Parameters

_LARGEST, _MOST_TIMES = 1e300, 2**53
_CLOSE = Fraction(1, 2**40)


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


class NoisySum(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One noisy sum, over one chunk or several: what a client can change in all of them, and the least noise of any.

    `l2_squared` is Delta2^2 and `l1` is Delta1, in integer units; `variance` is what privacy may count on.
    `mechanism` is None for Skellam noise, the protocol's own; `brought` says that the clients bring the noise of the
    plan themselves, so that the outputs of the protocol do not tell of it.
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
    def under(self) -> str:
        """Return the name of the mechanism that made the sum."""
        return self.mechanism or name_of(DSkellam)

    def cost(self, variance: Fraction, samples: int) -> ReleaseCost:
        """Return what the sum costs where this variance counts and the noise in it is made of so many samples."""
        distance = samples * accounting.SAMPLE_DISTANCE
        if self.mechanism is None:
            return ReleaseCost(SkellamSum(self.l2_squared, self.l1, float(variance)), distance)
        for price in self.prices:
            if price.variance == variance:
                return ReleaseCost(price.event, distance)
        raise InputError(f"the mechanism '{self.mechanism}' has no price for noise of variance {variance}")


def to_be_priced(parameters: Parameters, given: Mechanism | None = None) -> Mechanism | None:
    """Return the mechanism whose prices are needed: the one that is given, or the one that the parameters name."""
    if given is not None:
        check_agreed(parameters, given)
        check_scheme(parameters, given)
    elif known(parameters.encoding.mechanism).priced:
        given = mechanism_of(parameters)
    return given if given is not None and given.priced else None


def plans_of(parameters: Parameters, priced: Mechanism | None) -> tuple[NoisePlan, ...]:
    """Return the noise plan of each chunk: the protocol's, or that of the shares that clients bring."""
    if priced is None or not priced.share:
        return parameters.plans
    if parameters.encoding.bit:
        raise ParametersRefused(f"the noise of '{priced.name}' is brought by clients: there is none on a clipping bit")
    n, T, T_C = len(parameters.clients), parameters.tolerance, parameters.colluders
    plan = NoisePlan(Scheme.ORIG, n, T, T_C, (n - T_C) * priced.share, parameters.fraction, parameters.reserve)
    return (plan,) * len(parameters.chunks)


def released(
    plans: Sequence[NoisePlan], sums: Sequence[tuple[Sensitivity, Sequence[int]]], priced: Mechanism | None
) -> tuple[NoisySum, ...]:
    """Write down the sums of a round; a price list is for the first, and others are under Skellam noise."""
    released: list[NoisySum] = []
    for changed, chunks in sums:
        noise = [plans[chunk] for chunk in chunks]
        release = NoisySum(changed.squared, changed.l1, changed.dim, tuple(chunks), _least(noise))
        if priced and not released:
            prices = tuple(Price(variance, terms_of(priced.release(variance))) for variance in _countable(noise))
            changes = {"mechanism": priced.name, "prices": prices, "brought": bool(priced.share)}
            release = msgspec.structs.replace(release, **changes)
        released.append(release)
    return tuple(released)


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
    raise InputError(f"no bound is known for {type(event).__name__}")


def check_release(release: NoisySum, plans: Sequence[NoisePlan], least: Fraction) -> None:
    """A release has a sensitivity, the Delta1 that follows from it, and the least variance of its chunks."""
    if release.l2_squared < (0 if release.prices else 1) or release.dim < 1:
        raise InputError(f"a sum has Delta2^2 and a length of 1 or more, not {release.l2_squared} and {release.dim}")
    if release.l1 != Sensitivity(release.l2_squared, release.dim).l1:
        raise InputError("Delta1 is not what Delta2 and the length give")
    if release.variance != least:
        raise InputError("the reserved variance is not the least that the noise of the chunks allows")
    check_noise(release, plans)


def check_noise(release: NoisySum, plans: Sequence[NoisePlan]) -> None:
    """What the sum costs can be computed: from the plans of its chunks, or else from a list of prices."""
    if release.mechanism is not None and not release.prices:
        raise InputError(
            f"the sum under '{release.mechanism}' has no prices: early versions of dordis wrote discrete Gaussian "
            "noise down without, and only they can verify it"
        )
    if release.mechanism is None and (release.prices or release.brought):
        raise InputError("a sum has prices if its noise is not Skellam's, and only then")
    if release.brought and any(plan.scheme is not Scheme.ORIG for plan in plans):
        raise InputError("noise that clients bring is an even share of each")
    variances = [price.variance for price in release.prices]
    if release.prices and variances != _countable(plans):
        raise InputError("the prices of a sum are not for the variances that may count in its chunks")
    for price in release.prices:
        check_price(price, plans[0].clients, price.variance if release.brought else None)


def check_price(price: Price, clients: int, brought: Fraction | None = None) -> None:
    """A price has terms, of numbers that make sense, and its divergence is known."""
    if not price.terms:
        raise InputError("a release that costs nothing is no release")
    for term in price.terms:
        sensible = all(0 <= number <= _LARGEST for number in astuple(term.event))
        if not sensible or not 1 <= term.times <= _MOST_TIMES:
            raise InputError("the numbers of an event are finite, and not below 0")
        if isinstance(term, DiscreteGaussianTerm):
            check_shares(term.event, clients, brought)
        if not (accounting.curve(term.event) >= 0).all():
            raise InputError("the divergence of an event is a number from 0 on")


def check_shares(event: DiscreteGaussianSum, clients: int, brought: Fraction | None) -> None:
    """There is noise of no more clients than take part, and no more of it than they bring."""
    if event.clients > clients:
        raise InputError("there is noise of more clients than take part")
    if brought is not None and event.clients * event.scale**2 > brought * (1 + _CLOSE):
        raise InputError("there is more noise in the price than in the sum")


def counted(plan: NoisePlan, dropped: int | None) -> Fraction:
    """Return the variance that privacy may count on after so many dropouts; if they are not known, the least."""
    return _reserved(plan) if dropped is None else plan.charged(range(plan.clients - dropped), b"")


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
