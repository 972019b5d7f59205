"""The charge of a round: its clients and the privacy cost of its noisy sums, as frozen data.

A round is charged before its first disclosure, at the least noise that its parameters allow.  Every cost can be
recomputed without the code of the mechanism.  The cost of Skellam noise, the protocol's own, follows from sensitivity,
length and variance.  For another mechanism the ledger stores a price list: the cost for each noise variance that up to
T dropouts can leave; with more dropouts a round has no output.  The noise is either added by the protocol, or in even
shares (scheme `orig`) by the mechanism of each client, before the protocol runs.  The Gaussian baselines add noise in
neither way, so their list has one price, which must hold for any number of dropouts.

Skellam and discrete Gaussian noise is drawn with a small total variation distance from its law.  This distance is
charged.  Other noise is charged as its mechanism states, and the Gaussian baselines as if floats were real numbers.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import msgspec

from dordis.errors import InputError, ParametersRefused
from dordis.privacy import accounting
from dordis.privacy.accounting import Composed, DiscreteGaussianSum, Event, Gaussian, ReleaseCost, Repeated, SkellamSum
from dordis.privacy.mechanisms import Mechanism, find_builtin_mechanism, mechanism_name
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.scaling import Sensitivity
from dordis.privacy.xnoise_components import NoisePlan, Scheme
from dordis.protocol import ClientId
from dordis.protocols.costs import NEVER, graph_failure
from dordis.protocols.encoded_sums import check_agreed, check_scheme, mechanism_of, releases_of
from dordis.protocols.parameters import Parameters
from dordis.selection.beacon import check_index

theta_squared = lru_cache(maxsize=1 << 12)(accounting.theta_squared)  # most rounds cost the same
_LARGEST, _MOST_TIMES = 1e300, 2**53
_CLOSE = Fraction(1, 2**40)


class _Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    times: int


class SkellamTerm(_Term, frozen=True, tag="skellam"):
    """A part of a price: `times` times the cost of `event`, one sum under Skellam noise."""

    event: SkellamSum


class DiscreteGaussianTerm(_Term, frozen=True, tag="discrete-gaussian"):
    """A part of a price: `times` times the cost of `event`, one sum under discrete Gaussian noise."""

    event: DiscreteGaussianSum


class GaussianTerm(_Term, frozen=True, tag="gaussian"):
    """A part of a price: `times` times the cost of `event`, one release under Gaussian noise."""

    event: Gaussian


Term = SkellamTerm | DiscreteGaussianTerm | GaussianTerm


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of a price list: `terms`, the cost of a release if the noise that counts for privacy has `variance`."""

    variance: Fraction
    terms: tuple[Term, ...]

    @property
    def event(self) -> Event:
        """Return all terms together as one event of `dordis.privacy.accounting`."""
        return Composed(tuple(Repeated(term.event, term.times) for term in self.terms))


class NoisySum(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One noisy sum over one or several chunks: its sensitivity, and the least noise variance of these chunks.

    `l2_squared` and `l1` are Delta2^2 and Delta1, the sensitivities in integer units.  `variance` is that of the noise
    that counts for privacy.  `mechanism` is None for Skellam noise, the protocol's own.  `brought` says that each
    client's mechanism adds the noise before the protocol runs; the protocol's outputs do not include this noise.
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
        return self.mechanism or mechanism_name(DSkellam)

    def cost(self, variance: Fraction, samples: int) -> ReleaseCost:
        """Return the cost of the sum if noise of this variance counts for privacy; raise InputError if it has no price.

        `samples` is the number of integers that all clients draw as noise; each adds `accounting.SAMPLE_DISTANCE`.
        """
        distance = samples * accounting.SAMPLE_DISTANCE
        if self.mechanism is None:
            return ReleaseCost(SkellamSum(self.l2_squared, self.l1, float(variance)), distance)
        for price in self.prices:
            if price.variance == variance:
                return ReleaseCost(price.event, distance)
        raise InputError(f"the mechanism '{self.mechanism}' has no price for noise of variance {variance}")


class Charge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """The data from which the cost of a round follows: clients, noise plan of every chunk, and releases.

    A chunk whose survivors are not fixed yet is charged at the least noise that up to T dropouts leave.  The update and
    every further release are charged.  `failure` bounds the chance that the round's graph is insecure or the round has
    more than T_C colluders.  `parameters` is the parameter hash.  The `NoisePlan` of chunk i has `variances[i]`, and
    the charge's `scheme`, `tolerance`, `colluders`, `fraction` and `reserve`, which the class `NoisePlan` explains.
    """

    index: int
    parameters: str
    clients: tuple[int, ...]
    scheme: str
    tolerance: int
    colluders: int
    fraction: int
    reserve: int
    variances: tuple[Fraction, ...]
    releases: tuple[NoisySum, ...]
    failure: Fraction = NEVER
    dropped: tuple[int | None, ...] = ()
    """Number of dropouts of each chunk, None if its survivors were not fixed at the charge; empty if all are None."""
    n_max: int = 0
    """In assisted rounds the largest number of clients in a sum; `clients` has those that contributed.  Else 0."""

    @classmethod
    def from_parameters(
        cls,
        parameters: Parameters,
        releases: Sequence[tuple[Sensitivity, Sequence[int]]] = (),
        mechanism: Mechanism | None = None,
        draw_failure: Fraction = NEVER,
        arrived: Collection[ClientId] = (),
    ) -> "Charge":
        """Return the charge of a round from its parameters.

        `releases` has each sum's sensitivity and chunks, by default those in the parameters.  A third party's
        `mechanism` must be given; its price list is for the first sum, the update.  `draw_failure` bounds the chance
        that more than T_C colluders are drawn.  In assisted rounds `arrived` has the clients that came.
        """
        priced = priced_mechanism(parameters, mechanism)
        plans, sums = noise_plans(parameters, priced), releases or releases_of(parameters)
        check_chunks_covered([chunks for _, chunks in sums], len(plans))
        charge = cls(
            index=parameters.index,
            parameters=parameters.digest.hex(),
            clients=tuple(sorted(int(u) for u in parameters.clients or arrived)),
            scheme=plans[0].scheme.value,
            tolerance=parameters.tolerance,
            colluders=parameters.colluders,
            fraction=parameters.fraction,
            reserve=parameters.reserve,
            variances=tuple(plan.variance for plan in plans),
            releases=noisy_sums(plans, sums, priced),
            failure=(draw_failure + graph_failure(parameters)) or NEVER,  # a chance of NEVER is not written to the file
            n_max=0 if parameters.clients else parameters.n_max,
        )
        check_charge(charge)
        return charge

    @cached_property
    def plans(self) -> tuple[NoisePlan, ...]:
        """Return the noise plan of each chunk."""
        shared = (Scheme(self.scheme), self.largest, self.tolerance, self.colluders)
        return tuple(NoisePlan(*shared, variance, self.fraction, self.reserve) for variance in self.variances)

    @property
    def largest(self) -> int:
        """Return the largest number of clients in a sum: all clients of the round, or `n_max` if it is assisted."""
        return self.n_max or len(self.clients)

    def after_dropouts(self, dropped: Mapping[int, int]) -> "Charge":
        """Return this charge with the dropouts by chunk in `dropped`; other chunks are charged for up to T dropouts."""
        known = tuple(dropped.get(chunk) for chunk in range(len(self.variances)))
        charge = msgspec.structs.replace(self, dropped=known)
        releases = (msgspec.structs.replace(one, variance=charge.least_variance(one.chunks)) for one in self.releases)
        return msgspec.structs.replace(charge, releases=tuple(releases))

    @property
    def without_dropout(self) -> "Charge":
        """Return the charge that this round would have without dropout: its least cost."""
        return self.after_dropouts(dict.fromkeys(range(len(self.variances)), 0))

    def least_variance(self, chunks: Sequence[int]) -> Fraction:
        """Return the least variance that counts for privacy in these chunks; if dropouts are unknown, after up to T."""
        return min(
            counted_variance(self.plans[chunk], self.dropped[chunk] if self.dropped else None) for chunk in chunks
        )

    def costs(self, charged: Sequence[Fraction] | None = None) -> tuple[ReleaseCost, ...]:
        """Return the cost of every release; `charged` has the variance of each chunk, by default the least possible."""
        components = len(self.plans[0].base) + len(self.plans[0].removable)
        costs = []
        for release in self.releases:
            variance = release.variance if charged is None else min(charged[chunk] for chunk in release.chunks)
            costs.append(release.cost(variance, release.dim * self.largest * components))
        return tuple(costs)

    @cached_property
    def reserved_costs(self) -> tuple[ReleaseCost, ...]:
        """Return the cost of every release at the least noise with which the round can end."""
        return self.costs()

    @property
    def owner_charge(self) -> "OwnerCharge":
        """Return the largest cost that owners may count for this round: at the least noise after up to T dropouts."""
        costs = msgspec.structs.replace(self, dropped=()).after_dropouts({}).costs()
        cost = accounting.compose_costs((theta_squared(one.event), 1) for one in costs)
        return OwnerCharge(self.clients, None if math.isinf(cost) else cost, math.fsum(one.distance for one in costs))

    @property
    def noise_added_by_clients(self) -> NoisePlan | None:
        """Return the plan of the noise that clients' mechanisms add before the protocol runs; None if there is none."""
        return self.plans[0] if self.releases[0].brought else None


@dataclass(frozen=True)
class OwnerCharge:
    """The largest cost, a theta^2 (None if no bound on it is known), that owners of `clients` may count for a round.

    `distance` is the total variation distance between the noise that is drawn and the noise that is analysed.
    """

    clients: tuple[int, ...]
    cost: float | None
    distance: float


def check_charge(charge: Charge) -> None:
    """Raise InputError if a field of a charge is out of range or contradicts another."""
    check_index(charge.index)
    check_clients(charge.clients)
    if charge.n_max and charge.n_max < len(charge.clients):
        raise InputError(f"a round of at most {charge.n_max} clients is charged to {len(charge.clients)}")
    if charge.scheme not in {scheme.value for scheme in Scheme}:
        raise InputError(f"there is no noise scheme '{charge.scheme}'")
    if len(charge.parameters) != 64 or not set(charge.parameters) <= set("0123456789abcdef"):
        raise InputError("the parameters of a round are named by their hash, 64 lower-case hex digits")
    if not 0 <= charge.failure < 1:
        raise InputError(f"the chance that a round fails lies in [0, 1), not at {charge.failure}")
    check_chunks_covered([release.chunks for release in charge.releases], len(charge.variances))
    check_dropped(charge)
    for release in charge.releases:
        check_release(release, [charge.plans[chunk] for chunk in release.chunks], charge.least_variance(release.chunks))


def check_clients(clients: Sequence[int]) -> None:
    """Raise InputError unless client ids are distinct, ascending, and not negative."""
    if not clients or list(clients) != sorted(set(clients)) or clients[0] < 0:
        raise InputError("the clients of a round are distinct ids in ascending order")


def check_dropped(charge: Charge) -> None:
    """Raise InputError unless `dropped` is empty or has an entry for every chunk, each None or from 0 to T."""
    if charge.dropped and len(charge.dropped) != len(charge.variances):
        raise InputError("the dropouts of a round are given for every chunk or for none")
    if any(lost is not None and not 0 <= lost <= charge.tolerance for lost in charge.dropped):
        raise InputError(f"an opened chunk has 0 to {charge.tolerance} dropouts")


def check_chunks_covered(spread: Sequence[Sequence[int]], chunks: int) -> None:
    """Raise InputError unless `spread` (chunks by release) has all `chunks` chunks, each once, and no empty release."""
    if not chunks or sorted(chunk for some in spread for chunk in some) != list(range(chunks)) or not all(spread):
        raise InputError("every chunk of a round belongs to one release, and every release has a chunk")


def priced_mechanism(parameters: Parameters, given: Mechanism | None = None) -> Mechanism | None:
    """Return the mechanism of a round if it has a price list, otherwise None; `given` is a third party's mechanism."""
    if given is not None:
        check_agreed(parameters, given)
        check_scheme(parameters, given)
    elif find_builtin_mechanism(parameters.encoding.mechanism).has_price_list:
        given = mechanism_of(parameters)
    return given if given is not None and given.has_price_list else None


def noise_plans(parameters: Parameters, priced: Mechanism | None) -> tuple[NoisePlan, ...]:
    """Return each chunk's noise plan: the protocol's, or that of the noise that clients themselves add by `priced`."""
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
    """Return a noisy sum for each (sensitivity, chunks) in `sums`; if given, `priced` has the prices of the first."""
    releases: list[NoisySum] = []
    for changed, chunks in sums:
        noise = [plans[chunk] for chunk in chunks]
        release = NoisySum(changed.squared, changed.l1, changed.dim, tuple(chunks), min(map(_reserved, noise)))
        if priced and not releases:
            prices = tuple(Price(variance, price_terms(priced.release(variance))) for variance in _countable(noise))
            changes = {"mechanism": priced.name, "prices": prices, "brought": bool(priced.share)}
            release = msgspec.structs.replace(release, **changes)
        releases.append(release)
    return tuple(releases)


def price_terms(event: Event, times: int = 1) -> tuple[Term, ...]:
    """Return the terms of the price of `times` equal events; raise InputError if no bound on their cost is known."""
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
    """Raise InputError for an invalid sensitivity or cost of a sum, or if its reserved variance is not `least`."""
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
    """Raise InputError if a price has no terms, or a term is invalid or assumes too much noise (`check_shares`)."""
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
    """Raise InputError if a price has noise of over `clients` clients, or a variance above `brought` (unless None)."""
    if event.clients > clients:
        raise InputError(f"a price has noise of {event.clients} clients, and only {clients} take part")
    if brought is not None and event.clients * event.scale**2 > brought * (1 + _CLOSE):
        raise InputError("a price has more noise than the sum")


def counted_variance(plan: NoisePlan, dropped: int | None) -> Fraction:
    """Return the variance that counts for privacy after `dropped` dropouts; for None, the least after up to T."""
    return _reserved(plan) if dropped is None else plan.charged_variance(range(plan.clients - dropped), b"")


def _countable(plans: Sequence[NoisePlan]) -> list[Fraction]:
    return sorted({variance for plan in set(plans) for variance in _charged(plan)})


@lru_cache(maxsize=1 << 10)
def _reserved(plan: NoisePlan) -> Fraction:
    return plan.reserved_variance()


@lru_cache(maxsize=1 << 10)
def _charged(plan: NoisePlan) -> frozenset[Fraction]:
    """Return the variances that count for privacy after 0, 1, ..., T dropouts, whichever clients drop out."""
    return frozenset(plan.charged_variance(range(plan.clients - dropped), b"") for dropped in range(plan.tolerance + 1))
