"""The charge of a round: its privacy cost and the clients that pay, as frozen data.

A round is charged before its first unmask request, at the least noise that its parameters allow.  When it is complete,
it is charged at the noise actually left.  The clients whose input may be in an opened sum pay:

- for a reserved round, all of its clients U, because it is not known for which survivors U3 an unmask request left;
  with open arrival, all clients that came;
- for a completed round, the clients in U3 of at least one chunk, for the whole vector.  The input of a client outside
  U3 stays hidden by its self-mask, even if the upload came late: no honest client gives a share of that mask.

Dropout that depends on a client's data is outside the guarantee.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import msgspec

from dordis.errors import InputError
from dordis.ledger.release_cost import (
    NoisySum,
    check_release,
    counted_variance,
    noise_plans,
    noisy_sums,
    priced_mechanism,
)
from dordis.privacy import accounting
from dordis.privacy.accounting import ReleaseCost
from dordis.privacy.mechanisms import Mechanism
from dordis.privacy.scaling import Sensitivity
from dordis.privacy.xnoise_components import NoisePlan, Scheme, removal_context
from dordis.protocol import ClientId
from dordis.protocols.costs import NEVER, graph_failure
from dordis.protocols.distributed_noise import ChunkOutput
from dordis.protocols.encoded_sums import releases_of
from dordis.protocols.parameters import INDEX_BYTES, Parameters
from dordis.selection.beacon import check_index

theta_squared = lru_cache(maxsize=1 << 12)(accounting.theta_squared)  # most rounds cost the same


class Charge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """The data from which the cost of a round follows: clients, noise plan of every chunk, and releases.

    A chunk whose survivors are not fixed yet is charged at the least noise that up to T dropouts leave.  The update and
    every further release are charged.  `failure` is the chance that the round's graph is insecure or that the round has
    more than T_C colluders.
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
    """With open arrival the largest number of clients in a sum, and `clients` are those that came; otherwise 0."""

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

        `releases` has each sum's sensitivity and chunks, by default those of the parameters.  A third party's
        `mechanism` must be given; its price list is for the first sum, the update.
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
        """Return the largest number of clients in a sum: all clients of the round, or `n_max` with open arrival."""
        return self.n_max or len(self.clients)

    def after_dropouts(self, dropped: Mapping[int, int]) -> "Charge":
        """Return this charge with known dropouts: `dropped` has their number, for some chunks."""
        known = tuple(dropped.get(chunk) for chunk in range(len(self.variances)))
        charge = msgspec.structs.replace(self, dropped=known)
        releases = (msgspec.structs.replace(one, variance=charge.least_variance(one.chunks)) for one in self.releases)
        return msgspec.structs.replace(charge, releases=tuple(releases))

    @property
    def without_dropout(self) -> "Charge":
        """Return this charge if no client drops out, which is the least cost of the round."""
        return self.after_dropouts(dict.fromkeys(range(len(self.variances)), 0))

    def least_variance(self, chunks: Sequence[int]) -> Fraction:
        """Return the least noise variance of these chunks, for the known number of dropouts or else for up to T."""
        return min(
            counted_variance(self.plans[chunk], self.dropped[chunk] if self.dropped else None) for chunk in chunks
        )

    def costs(self, charged: Sequence[Fraction] | None = None) -> tuple[ReleaseCost, ...]:
        """Return the cost of every release, given the charged variance of every chunk; by default the reserved ones."""
        components = len(self.plans[0].base) + len(self.plans[0].removable)
        costs = []
        for release in self.releases:
            variance = release.variance if charged is None else min(charged[chunk] for chunk in release.chunks)
            costs.append(release.cost(variance, release.dim * self.largest * components))
        return tuple(costs)

    @cached_property
    def reserved_costs(self) -> tuple[ReleaseCost, ...]:
        """Return the cost of every release at the reserved noise."""
        return self.costs()

    @property
    def owner_charge(self) -> "OwnerCharge":
        """Return the cost that the owners of all clients may count, for a round without a `Counted` line."""
        costs = msgspec.structs.replace(self, dropped=()).after_dropouts({}).costs()
        cost = accounting.compose_costs((theta_squared(one.event), 1) for one in costs)
        return OwnerCharge(self.clients, None if math.isinf(cost) else cost, math.fsum(one.distance for one in costs))

    @property
    def noise_added_by_clients(self) -> NoisePlan | None:
        """Return the plan of noise that clients add outside the protocol; None if they add none."""
        return self.plans[0] if self.releases[0].brought else None


class ChunkOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a chunk: the clients that dropped out, the noise variance left in the sum, and the one charged."""

    dropped: tuple[int, ...]
    left: Fraction
    charged: Fraction


def outcome_from_output(charge: Charge, outcome: ChunkOutput) -> ChunkOutcome:
    """Return the outcome of a chunk from the protocol's output; raise InputError if a survivor is not a client."""
    survivors = {int(u) for u in outcome.survivors}
    if not survivors <= set(charge.clients):
        raise InputError(f"a survivor of round {charge.index} is not among its clients")
    dropped = tuple(u for u in charge.clients if u not in survivors)
    if (plan := charge.noise_added_by_clients) is None:
        return ChunkOutcome(dropped, outcome.left, outcome.charged)
    return ChunkOutcome(
        dropped,
        outcome.left + plan.variance_left(survivors, b""),
        outcome.charged + plan.charged_variance(survivors, b""),
    )


@dataclass(frozen=True)
class OwnerCharge:
    """The largest cost theta^2 that the owners of `clients` counted for a round; `cost` is None if they count none."""

    clients: tuple[int, ...]
    cost: float | None
    distance: float


@dataclass(frozen=True)
class RunCharge:
    """The cost of a whole run for each client: theta^2 (docs/accounting.md), and the chance of a bad graph or draw."""

    label: str
    theta_squared: float
    failure: Fraction

    @property
    def cost(self) -> ReleaseCost:
        """Return the cost as that of one Gaussian release."""
        return ReleaseCost(accounting.Gaussian(1 / math.sqrt(self.theta_squared)), 0.0)


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
    """Raise InputError unless dropouts are given for every chunk or for none, at most the tolerance T in each."""
    if charge.dropped and len(charge.dropped) != len(charge.variances):
        raise InputError("the dropouts of a round are given for every chunk or for none")
    if any(lost is not None and not 0 <= lost <= charge.tolerance for lost in charge.dropped):
        raise InputError(f"an opened chunk has 0 to {charge.tolerance} dropouts")


def check_known_dropouts(charge: Charge, chunk: int, outcome: "ChunkOutcome") -> None:
    """Raise InputError if a chunk was charged for a known number of dropouts and its outcome has another."""
    lost = charge.largest - len(charge.clients) + len(outcome.dropped)
    if charge.dropped and charge.dropped[chunk] not in (None, lost):
        raise InputError(f"chunk {chunk} was charged for {charge.dropped[chunk]} dropouts and has {lost}")


def check_chunks_covered(spread: Sequence[Sequence[int]], chunks: int) -> None:
    """Raise InputError unless every chunk belongs to exactly one release, and every release has a chunk."""
    if not chunks or sorted(chunk for some in spread for chunk in some) != list(range(chunks)) or not all(spread):
        raise InputError("every chunk of a round belongs to one release, and every release has a chunk")


def check_outcome(charge: Charge, run: bytes, chunk: int, outcome: ChunkOutcome) -> None:
    """Raise InputError unless the variances of a chunk follow from its noise plan and its survivors.

    The variance left may be larger than the charged one, by excess noise that could not be removed.
    """
    gone, plan = set(outcome.dropped), charge.plans[chunk]
    survivors = [u for u in charge.clients if u not in gone]
    if len(survivors) + len(outcome.dropped) != len(charge.clients) or list(outcome.dropped) != sorted(gone):
        raise InputError(f"the dropouts of chunk {chunk} are not distinct clients of the round in ascending order")
    named = removal_context(run + charge.index.to_bytes(INDEX_BYTES, "big"), chunk, bytes.fromhex(charge.parameters))
    if outcome.charged != plan.charged_variance(survivors, named):
        raise InputError(f"the variance charged to chunk {chunk} is not the one that its survivors give")
    if outcome.left < plan.variance_left(survivors, named):
        raise InputError(f"the variance left in chunk {chunk} is less than the one that its survivors give")
