"""What the rounds of a run cost, and whom: charges as frozen data, and what became of them.

A round is charged before its first unmask request leaves, with the least noise that its parameters allow; when it is
complete, with the noise that was really kept.  Privacy is lost by those whose input may be in a sum that was opened:

- of a round that is only reserved, all of U: an unmask request may have left, and nobody knows for which U3;
- of a completed round, whoever is in U3 of at least one chunk, for the whole vector.  The input of a client outside U3
  stays behind its self-mask, of which no honest client gives a share, even if the upload came late.

Dropout that depends on a client's data is outside the guarantee.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import msgspec

from dordis.errors import InputError
from dordis.federation.beacon import check_index
from dordis.federation.releases import NoisySum, check_release, counted, plans_of, released, to_be_priced
from dordis.privacy import accounting
from dordis.privacy.accounting import ReleaseCost
from dordis.privacy.mechanisms.mechanism import Mechanism
from dordis.privacy.skellam import Sensitivity
from dordis.privacy.xnoise import NoisePlan, Scheme, context
from dordis.protocols.costs import NEVER, graph_failure
from dordis.protocols.distributed_dp import releases_of
from dordis.protocols.distributed_noise import ChunkOutput
from dordis.protocols.parameters import INDEX_BYTES, Parameters

theta_squared = lru_cache(maxsize=1 << 12)(accounting.theta_squared)
"""Most rounds cost the same."""


class Charge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """What a round may cost, as its parameters say: who takes part, the noise of every chunk, and the releases.

    A chunk whose U3 is open counts with the least noise of any |D| <= T, the others with what is left.  Every release
    is charged, so that a second one, like the bit of adaptive clipping, is composed with the first.  `failure` is the
    chance that the graph of the round fails, or that it has more than T_C colluders.
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
    """|D| of each chunk, where it was known when the round was charged; empty if no U3 was closed."""

    @classmethod
    def of(
        cls,
        parameters: Parameters,
        releases: Sequence[tuple[Sensitivity, Sequence[int]]] = (),
        mechanism: Mechanism | None = None,
        draw_failure: Fraction = NEVER,
    ) -> "Charge":
        """Charge a round for the chunks of each sum, by default for those that its parameters name.

        `mechanism` is the round's own.  It is needed where the parameters name one of third parties; its prices are
        for the first sum, the update.
        """
        priced = to_be_priced(parameters, mechanism)
        plans, sums = plans_of(parameters, priced), releases or releases_of(parameters)
        check_spread([chunks for _, chunks in sums], len(plans))
        charge = cls(
            index=parameters.index,
            parameters=parameters.digest.hex(),
            clients=tuple(int(u) for u in parameters.clients),
            scheme=plans[0].scheme.value,
            tolerance=parameters.tolerance,
            colluders=parameters.colluders,
            fraction=parameters.fraction,
            reserve=parameters.reserve,
            variances=tuple(plan.variance for plan in plans),
            releases=released(plans, sums, priced),
            failure=(draw_failure + graph_failure(parameters)) or NEVER,  # the one that is left out of the file
        )
        check_charge(charge)
        return charge

    @cached_property
    def plans(self) -> tuple[NoisePlan, ...]:
        """Return the noise plan of each chunk."""
        shared = (Scheme(self.scheme), len(self.clients), self.tolerance, self.colluders)
        return tuple(NoisePlan(*shared, variance, self.fraction, self.reserve) for variance in self.variances)

    def closed(self, dropped: Mapping[int, int]) -> "Charge":
        """Return the charge of a round of whose chunks some are closed, after so many dropouts."""
        known = tuple(dropped.get(chunk) for chunk in range(len(self.variances)))
        charge = msgspec.structs.replace(self, dropped=known)
        releases = (msgspec.structs.replace(one, variance=charge.least(one.chunks)) for one in self.releases)
        return msgspec.structs.replace(charge, releases=tuple(releases))

    @property
    def best(self) -> "Charge":
        """Return the least that the round may cost: if nobody drops out."""
        return self.closed(dict.fromkeys(range(len(self.variances)), 0))

    def least(self, chunks: Sequence[int]) -> Fraction:
        """Return the least variance of some chunks, at the number of dropouts where it is known."""
        return min(counted(self.plans[chunk], self.dropped[chunk] if self.dropped else None) for chunk in chunks)

    def costs(self, charged: Sequence[Fraction] | None = None) -> tuple[ReleaseCost, ...]:
        """Return what every release costs, at the variances charged to the chunks or at the reserved ones."""
        components = len(self.plans[0].base) + len(self.plans[0].removable)
        costs = []
        for release in self.releases:
            variance = release.variance if charged is None else min(charged[chunk] for chunk in release.chunks)
            costs.append(release.cost(variance, release.dim * len(self.clients) * components))
        return tuple(costs)

    @cached_property
    def reserved(self) -> tuple[ReleaseCost, ...]:
        """Return what every release costs at the reserved variances."""
        return self.costs()

    @property
    def count(self) -> "OwnersCount":
        """Return what the owners of all clients may have counted, where nobody wrote down who was asked."""
        costs = msgspec.structs.replace(self, dropped=()).closed({}).costs()
        cost = accounting.composed((theta_squared(one.event), 1) for one in costs)
        return OwnersCount(self.clients, None if math.isinf(cost) else cost, math.fsum(one.distance for one in costs))

    @property
    def brought(self) -> NoisePlan | None:
        """Return the plan of the noise that clients bring themselves, of which the protocol knows nothing, if any."""
        return self.plans[0] if self.releases[0].brought else None


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of a chunk: D = U without U3, the variance left in the sum, and what privacy may count on of it."""

    dropped: tuple[int, ...]
    left: Fraction
    charged: Fraction


def fact_of(charge: Charge, outcome: ChunkOutput) -> Fact:
    """Write down what became of a chunk."""
    survivors = {int(u) for u in outcome.survivors}
    if not survivors <= set(charge.clients):
        raise InputError(f"a survivor of round {charge.index} is not among its clients")
    dropped = tuple(u for u in charge.clients if u not in survivors)
    if (plan := charge.brought) is None:
        return Fact(dropped, outcome.left, outcome.charged)
    return Fact(dropped, outcome.left + plan.left(survivors, b""), outcome.charged + plan.charged(survivors, b""))


@dataclass(frozen=True)
class OwnersCount:
    """What the owners of some clients may have counted for a round: a theta^2, and the distance of the noise."""

    clients: tuple[int, ...]
    cost: float | None
    distance: float


def check_charge(charge: Charge) -> None:
    """A charge follows from its own clients, chunks and noise."""
    check_index(charge.index)
    if not charge.clients or list(charge.clients) != sorted(set(charge.clients)) or charge.clients[0] < 0:
        raise InputError("the clients of a round are distinct ids in ascending order")
    if charge.scheme not in {scheme.value for scheme in Scheme}:
        raise InputError(f"there is no noise scheme '{charge.scheme}'")
    if len(charge.parameters) != 64 or not set(charge.parameters) <= set("0123456789abcdef"):
        raise InputError("the parameters of a round are named by their hash, 64 lower-case hex digits")
    if not 0 <= charge.failure < 1:
        raise InputError(f"the chance that a round fails lies in [0, 1), not at {charge.failure}")
    check_spread([release.chunks for release in charge.releases], len(charge.variances))
    check_dropped(charge)
    for release in charge.releases:
        check_release(release, [charge.plans[chunk] for chunk in release.chunks], charge.least(release.chunks))


def check_dropped(charge: Charge) -> None:
    """|D| is given for every chunk or for none, and no round has an output beyond T."""
    if charge.dropped and len(charge.dropped) != len(charge.variances):
        raise InputError("the dropouts of a round are given for every chunk or for none")
    if any(lost is not None and not 0 <= lost <= charge.tolerance for lost in charge.dropped):
        raise InputError(f"a chunk that is opened has lost 0 to {charge.tolerance} clients")


def check_known(charge: Charge, chunk: int, fact: "Fact") -> None:
    """A chunk whose U3 was closed when it was charged has lost as many as was said then."""
    if charge.dropped and charge.dropped[chunk] not in (None, len(fact.dropped)):
        raise InputError(f"chunk {chunk} was charged after {charge.dropped[chunk]} dropouts, not {len(fact.dropped)}")


def check_spread(spread: Sequence[Sequence[int]], chunks: int) -> None:
    """Every chunk belongs to one release, and every release has a chunk."""
    if not chunks or sorted(chunk for some in spread for chunk in some) != list(range(chunks)) or not all(spread):
        raise InputError("every chunk of a round belongs to one release, and every release has a chunk")


def check_fact(charge: Charge, run: bytes, chunk: int, fact: Fact) -> None:
    """The variances are those of this plan for this U3; due noise that could not be removed may be left on top."""
    gone, plan = set(fact.dropped), charge.plans[chunk]
    survivors = [u for u in charge.clients if u not in gone]
    if len(survivors) + len(fact.dropped) != len(charge.clients) or list(fact.dropped) != sorted(gone):
        raise InputError(f"the clients dropped from chunk {chunk} are not distinct clients of the round, ascending")
    named = context(run + charge.index.to_bytes(INDEX_BYTES, "big"), chunk, bytes.fromhex(charge.parameters))
    if fact.charged != plan.charged(survivors, named):
        raise InputError(f"the variance charged to chunk {chunk} is not what its survivors keep")
    if fact.left < plan.left(survivors, named):
        raise InputError(f"the variance left in chunk {chunk} is less than what its survivors keep")
