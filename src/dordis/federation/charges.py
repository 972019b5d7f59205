"""What the rounds of a run cost, and whom: charges as frozen data, and an account that adds them up for every client.

A round is charged before its first unmask request leaves, with the least noise that its parameters allow; when it is
complete, with the noise that was really kept.  Privacy is lost by those whose input may be in a sum that was opened:

- of a round that is only reserved, all of U: an unmask request may have left, and nobody knows for which U3;
- of a completed round, whoever is in U3 of at least one chunk, for the whole vector.  The input of a client outside U3
  stays behind its self-mask, of which no honest client gives a share, even if the upload came late.

Dropout that depends on a client's data is outside the guarantee.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import msgspec

from dordis.errors import BudgetExceeded, InputError
from dordis.federation.beacon import check_index
from dordis.federation.releases import NoisySum, check_release, counted, plans_of, released, to_be_priced
from dordis.privacy import accounting
from dordis.privacy.accounting import ReleaseCost
from dordis.privacy.mechanisms.mechanism import Mechanism
from dordis.privacy.skellam import Sensitivity
from dordis.privacy.xnoise import NoisePlan, Scheme, context
from dordis.protocols.costs import NEVER, graph_failure
from dordis.protocols.distributed_dp import releases_of
from dordis.protocols.parameters import INDEX_BYTES, Parameters
from dordis.protocols.secagg import ChunkOutput

theta_squared = lru_cache(maxsize=1 << 12)(accounting.theta_squared)
"""No chance; this very object, the default, is left out of what is written."""


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
        lot_failure: Fraction = NEVER,
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
            failure=(lot_failure + graph_failure(parameters)) or NEVER,  # the one that is left out of the file
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
class Budget:
    """What a run may cost each of its clients; without an epsilon it is counted and never stopped."""

    epsilon: float | None
    delta: float

    def __post_init__(self) -> None:
        accounting.check_delta(self.delta)
        if self.epsilon is not None:
            accounting.check_epsilon(self.epsilon)


@dataclass(frozen=True)
class OwnersCount:
    """What the owners of some clients may have counted for a round: a theta^2, and the distance of the noise."""

    clients: tuple[int, ...]
    cost: float | None
    distance: float


@dataclass(frozen=True)
class Round:
    """A round in the account: reserved, and then completed with facts, unless it failed."""

    charge: Charge
    facts: tuple[Fact, ...] = ()

    @property
    def state(self) -> str:
        """Return the word for it."""
        return "completed" if self.facts else "reserved"

    @property
    def charged(self) -> tuple[int, ...]:
        """Return who pays for it: whoever may be in a sum that was opened."""
        absent = set(self.charge.clients).intersection(*(fact.dropped for fact in self.facts)) if self.facts else ()
        return tuple(u for u in self.charge.clients if u not in absent)


Paid = frozenset[tuple[ReleaseCost, int]]
"""What a client has paid for, and how often each."""


@lru_cache(maxsize=1 << 14)
def _composed(paid: Paid) -> float:
    return accounting.composed((theta_squared(cost.event), times) for cost, times in paid)


class Account:
    """Add up what every client has spent; a rule that is broken raises `InputError` and changes nothing.

    `renyi` states epsilon as ledgers of the first format did.
    """

    def __init__(self, run: bytes, budget: Budget, renyi: bool = False) -> None:
        self.run, self.budget, self._renyi = run, budget, renyi
        self.rounds: dict[int, Round] = {}
        self.counted: dict[int, OwnersCount] = {}
        self.predecessor: Account | None = None
        self._indices, self._likeliest = 0, Fraction(0)
        self._spent: dict[int, Counter[ReleaseCost]] = defaultdict(Counter)

    def succeeded(self, run: bytes, budget: Budget) -> "Account":
        """Return the account of a successor run: what every client has spent goes on, this account stays as it is."""
        if run in (earlier.run for earlier in self.line()):
            raise InputError("a run does not succeed itself")
        following = copy(self)
        following.run, following.budget, following.predecessor = run, budget, self
        following.rounds, following.counted = {}, {}
        following._indices, following._likeliest = 0, Fraction(0)
        following._spent = defaultdict(Counter, {u: Counter(costs) for u, costs in self._spent.items()})
        return following

    def line(self) -> "Iterator[Account]":
        """Return this account and those of the runs before, the latest first."""
        account: Account | None = self
        while account is not None:
            yield account
            account = account.predecessor

    def owners_counts(self) -> "dict[tuple[bytes, int], OwnersCount]":
        """Return what owners may have counted in this run and in those before, by run and index."""
        counts = {}
        for account in self.line():
            for index in sorted({*account.counted, *account.rounds}):
                count = account.counted.get(index)
                counts[account.run, index] = account.rounds[index].charge.count if count is None else count
        return counts

    def check_countable(self, index: int, count: "OwnersCount") -> None:
        """The index was never used, and the count is one of clients."""
        check_index(index)
        if index in self.counted or index in self.rounds:
            raise InputError(f"round {index} is in the ledger already: a retry takes the next index")
        if not count.clients or list(count.clients) != sorted(set(count.clients)) or count.clients[0] < 0:
            raise InputError("the clients of a round are distinct ids in ascending order")
        if not (0 <= count.distance < 1 and (count.cost is None or 0 < count.cost < math.inf)):
            raise InputError("what a round costs is a number above 0")

    def count(self, index: int, count: "OwnersCount") -> None:
        """Remember what owners may have counted."""
        self.check_countable(index, count)
        self.counted[index] = count

    def check_reservable(self, charge: Charge) -> None:
        """The charge is what it says, and its index was never used: not by a round that failed either."""
        check_charge(charge)
        count = self.counted.get(charge.index)
        if count is not None and not set(count.clients) <= set(charge.clients):
            raise InputError(f"round {charge.index} is charged to others than were asked for uploads")
        if charge.index in self.rounds:
            raise InputError(f"round {charge.index} is in the ledger already: a retry takes the next index")

    def reserve(self, charge: Charge) -> None:
        """Charge all of U with the least noise that the round may have."""
        self.check_reservable(charge)
        self.rounds[charge.index] = Round(charge)
        self._indices, self._likeliest = self._with(charge)
        self._count(charge.clients, charge.costs(), 1)

    def check_completable(self, index: int, facts: Sequence[Fact]) -> None:
        """The round is open, and the facts are what its plan and U3 give."""
        charge = self.check_open(index).charge
        if len(facts) != len(charge.variances):
            raise InputError(f"round {index} has {len(charge.variances)} chunks, not {len(facts)}")
        for chunk, fact in enumerate(facts):
            check_fact(charge, self.run, chunk, fact)
            check_known(charge, chunk, fact)
        charge.costs([fact.charged for fact in facts])  # there is a bound for it

    def complete(self, index: int, facts: Sequence[Fact]) -> None:
        """Charge, instead, those whose input is in a sum, with the noise that was kept."""
        self.check_completable(index, facts)
        charge = self.rounds[index].charge
        self.rounds[index] = Round(charge, tuple(facts))
        self._count(charge.clients, charge.costs(), -1)
        self._count(self.rounds[index].charged, charge.costs([fact.charged for fact in facts]), 1)

    def check_open(self, index: int) -> Round:
        """The round is reserved, and not completed; return it."""
        known = self.rounds.get(index)
        if known is None or known.state != "reserved":
            raise InputError(f"round {index} is {known.state if known else 'not'} in the ledger, and so not open")
        return known

    def epsilon(self, client: int, more: Charge | None = None) -> float:
        """Return what a client has spent, and would have with a round more; infinity where failures take all delta."""
        left = self.budget.delta - float(self.failure(more))
        return accounting.spent(self._paid(client, more), left, self._renyi) if left > 0 else math.inf

    def failure(self, more: Charge | None = None) -> Fraction:
        """Return the chance that the graph or the lots failed under any index so far, that of a round more included.

        An index counts whether or not a round took place under it: the server chose under which ones they do.
        """
        indices, likeliest = self._with(more)
        earlier = (account._indices * account._likeliest for account in self.line() if account is not self)
        return indices * likeliest + sum(earlier, Fraction(0))

    def _with(self, more: Charge | None) -> tuple[int, Fraction]:
        """Return how many indices there were, and the largest chance of failure under one of them."""
        if more is None:
            return self._indices, self._likeliest
        return max(self._indices, more.index + 1), max(self._likeliest, more.failure)

    def costs(self, client: int, more: Charge | None = None) -> Counter[ReleaseCost]:
        """Return what a client has paid for, and would have with a round more."""
        return self._spent.get(client, Counter()) + Counter(more.reserved if more else ())

    def _paid(self, client: int, more: Charge | None = None) -> Paid:
        """Return the same as a value that can be looked up: most clients have paid for the same."""
        if more is not None:
            return frozenset(self.costs(client, more).items())
        return frozenset(item for item in self._spent.get(client, {}).items() if item[1])

    def worst(self, clients: Iterable[int], more: Charge | None = None) -> int | None:
        """Return who of some clients has spent most, or would have: the first of those who have."""
        costs = {u: self._theta_squared(u, more) for u in clients}
        if math.inf in costs.values():
            costs = {u: self.epsilon(u, more) for u in costs}
        return max(costs, key=lambda u: costs[u], default=None)

    @property
    def is_gaussian(self) -> bool:
        """Tell whether all that was charged has a theta^2."""
        return all(self._theta_squared(u) < math.inf for u in self._spent)

    def _theta_squared(self, client: int, more: Charge | None = None) -> float:
        return math.inf if self._renyi else _composed(self._paid(client, more))

    def clients(self) -> list[int]:
        """Return everyone who was ever in U."""
        rounds = (entry for account in self.line() for entry in account.rounds.values())
        return sorted({u for entry in rounds for u in entry.charge.clients})

    def check_budget(self, charge: Charge) -> None:
        """The round, at its reserved noise, takes none of its clients beyond the budget."""
        if self.budget.epsilon is None:
            return
        worst = self.worst(charge.clients, charge)
        if worst is not None and (epsilon := self.epsilon(worst, charge)) > self.budget.epsilon:
            raise BudgetExceeded(worst, epsilon, self.budget.epsilon)

    def _count(self, clients: Iterable[int], costs: Iterable[ReleaseCost], times: int) -> None:
        for cost in costs:
            for u in clients:
                self._spent[u][cost] += times


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
