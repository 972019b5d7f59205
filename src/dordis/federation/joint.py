"""The joint cost of several runs and queries over one population, each with its stated epsilon.

Clients are known again by their registered keys, where a run keeps its registry.  Where it does not, nobody knows who
is who, and the client that has spent most in such a run is taken to be everybody.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from dordis.errors import InputError, LedgerDamaged
from dordis.federation import evidence, ledger, records
from dordis.federation.account import Account, Budget
from dordis.federation.records import LEDGER, MANIFEST, REGISTRY
from dordis.federation.registry import Registry
from dordis.federation.stated import StatedEpsilon, at_delta, stated_epsilon
from dordis.privacy import accounting, gdp
from dordis.privacy.accounting import Gaussian, ReleaseCost

Costs = Counter[ReleaseCost]


@dataclass(frozen=True)
class Part:
    """One run, or one ledger of queries: what it has cost, and the keys of its clients, where they are kept."""

    path: Path
    account: Account
    stated: StatedEpsilon
    keys: dict[int, str]

    @property
    def worst(self) -> Costs:
        """Return the costs of the client that has spent most, or those of the stated epsilon if that is more."""
        client = self.account.worst(self.account.clients())
        return self._stated_costs if client is None else self.costs(client)

    def costs(self, client: int) -> Costs:
        """Return the costs of a client, or those of the stated epsilon if that is more than was spent."""
        return self.account.costs(client) if self.stated.is_spent else self._stated_costs

    @cached_property
    def _stated_costs(self) -> Costs:
        """Return one Gaussian release with the largest theta^2 whose epsilon is the stated one."""
        if self.stated.is_spent:
            return Counter()
        check_gaussian(self)
        left = self.stated.delta - float(self.account.failure())
        theta_squared = gdp.theta_budget(self.stated.epsilon, left)
        return Counter([ReleaseCost(Gaussian(1 / math.sqrt(theta_squared)), 0.0)])

    @property
    def epsilon(self) -> float:
        """Return its stated epsilon, at its own delta."""
        return self.stated.epsilon

    @property
    def how(self) -> str:
        """Say how its clients are added to those of other parts."""
        return "known by their keys" if self.keys else "the worst stands for all"


@dataclass(frozen=True)
class JointAccount:
    """The sum: epsilon of the client that has spent most, at `delta`."""

    epsilon: float
    delta: float
    parts: tuple[Part, ...]


def joint(paths: Sequence[Path], delta: float | None = None) -> JointAccount:
    """Add up runs and ledgers; `delta` is the smallest of theirs if it is not given."""
    if not paths:
        raise InputError("name the runs, or ledgers, that are to be added up")
    parts = tuple(part_of(path) for path in paths)
    check_once(parts)
    joined = [part for part in parts if part.keys]
    added = [part for part in parts if not part.keys]
    everybody: Costs = sum((part.worst for part in added), Counter())
    clients: dict[str, Costs] = {}
    for part in joined:
        for client in part.account.clients() if part.stated.is_spent else part.keys:
            clients[part.keys[client]] = clients.get(part.keys[client], Counter()) + part.costs(client)
    at = min(part.account.budget.delta for part in parts) if delta is None else accounting.check_delta(delta)
    failing = sum((part.account.failure() for part in parts), Fraction(0))
    left = at - float(failing)
    if left <= 0:
        raise InputError(
            f"the graphs and draws of these runs fail with a chance of {float(failing):.3g}: choose a larger delta"
        )
    worst = max(
        (accounting.spent(frozenset((costs + everybody).items()), left) for costs in clients.values()),
        default=accounting.spent(frozenset(everybody.items()), left),
    )
    alone = (at_delta(Budget(part.epsilon, part.stated.delta), at) for part in parts if 0 < part.epsilon < math.inf)
    return JointAccount(max(worst, *alone, 0.0), at, parts)


def part_of(path: Path) -> Part:
    """Read a run, whose files must bear each other out, or a ledger alone."""
    if not (path / MANIFEST).is_file():
        file = path / LEDGER if path.is_dir() else path
        account, _ = ledger.read(file)
        return Part(path, account, stated_epsilon(account), {})
    stored = records.load(path)
    summary = evidence.check_evidence(stored)
    if summary is None:
        raise InputError(f"the run at {path} proves nothing: there is no sum with it")
    account, _ = ledger.read(path / LEDGER, stored.id)
    return Part(path, account, summary.stated, registered(path, stored.manifest.registry, account))


def registered(path: Path, root: str, account: Account) -> dict[int, str]:
    """Return the keys of a run's clients, if it keeps a registry: the one that its manifest names."""
    if not (path / REGISTRY).is_file():
        return {}
    registry = Registry.load(path / REGISTRY)
    check_root(path, registry, root)
    keys = {int(u): identity.signing.hex() for u, identity in registry.items()}
    return keys if keys.keys() >= set(account.clients()) else {}


def check_root(path: Path, registry: Registry, root: str) -> None:
    """The registry is the one that the run began with."""
    if registry.root().hex() != root:
        raise LedgerDamaged(f"{path / REGISTRY} is not the registry that the run began with: restore it")


def check_gaussian(part: Part) -> None:
    """A run that states more than it spent has Gaussian noise only: other noise cannot be added up."""
    if not part.account.is_gaussian:
        raise InputError(
            f"{part.path} states more than it spent, and its noise is not Gaussian, so it cannot be added to other "
            "runs: use dordis ledger verify for it"
        )


def check_once(parts: Sequence[Part]) -> None:
    """No run is counted twice: neither by itself, nor as one that another has succeeded."""
    seen: set[bytes] = set()
    for part in parts:
        for account in part.account.line():
            if account.run in seen:
                raise InputError(
                    f"the run {account.run.hex()[:16]} is named twice, or is a predecessor of another: name the last "
                    "one of a line of successors only"
                )
            seen.add(account.run)
