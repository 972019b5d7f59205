"""The combined epsilon of several runs and ledgers of queries over one population.

Clients of different runs are matched by their registered keys.  In a run without a registry clients cannot be matched,
so its largest spending of a client counts for all clients.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from dordis.errors import InputError, LedgerDamaged
from dordis.identity.registry import Registry
from dordis.ledger import consistency, ledger
from dordis.ledger.client_spending import Account, Budget
from dordis.ledger.stated_epsilon import StatedEpsilon, epsilon_at_delta, stated_epsilon
from dordis.privacy import accounting, gdp
from dordis.privacy.accounting import Gaussian, ReleaseCost
from dordis.records import run_records
from dordis.records.run_records import LEDGER, MANIFEST, REGISTRY

Costs = Counter[ReleaseCost]
NOBODY = -1
"""An id that no client has; its costs are those of runs charged as a whole, which count for every client."""


@dataclass(frozen=True)
class LedgerPart:
    """One run or ledger of queries: account, stated epsilon, and clients' `keys`, empty if there is no registry."""

    path: Path
    account: Account
    stated: StatedEpsilon
    keys: dict[int, str]

    @property
    def worst_costs(self) -> Costs:
        """Return the costs of the client that has spent most, or of the stated epsilon if more is stated than spent."""
        client = self.account.worst_client(self.account.clients())
        return self.costs(NOBODY if client is None else client)

    def costs(self, client: int) -> Costs:
        """Return the costs of a client, or of the stated epsilon if more is stated than spent."""
        return self.account.costs(client) if self.stated.is_spent else self._stated_costs

    @cached_property
    def _stated_costs(self) -> Costs:
        """Return the cost of one Gaussian release with the stated epsilon; empty if that is the epsilon spent."""
        if self.stated.is_spent:
            return Counter()
        check_gaussian(self)
        left = self.stated.delta - float(self.account.failure())
        theta_squared = gdp.theta_budget(self.stated.epsilon, left)
        return Counter([ReleaseCost(Gaussian(1 / math.sqrt(theta_squared)), 0.0)])

    @property
    def epsilon(self) -> float:
        """Return the stated epsilon of this part, at its own delta."""
        return self.stated.epsilon

    @property
    def how(self) -> str:
        """Return a clause for the table: how clients of this part are matched with those of others."""
        return "known by their keys" if self.keys else "the worst stands for all"


@dataclass(frozen=True)
class CombinedEpsilon:
    """The largest epsilon of a client over all parts, at `delta`; a run included in another part is not in `parts`."""

    epsilon: float
    delta: float
    parts: tuple[LedgerPart, ...]


def combined_epsilon(paths: Sequence[Path], delta: float | None = None) -> CombinedEpsilon:
    """Return the combined epsilon of runs and ledgers at `delta`, by default the smallest delta of the parts.

    A run that another part includes, as a predecessor or as a whole run, is counted once.  Raise InputError if the
    parts cannot be combined.
    """
    if not paths:
        raise InputError("name the runs or ledgers to combine")
    parts = tuple(read_part(path) for path in paths)
    check_once(parts)
    parts = without_covered(parts)
    joined = [part for part in parts if part.keys]
    added = [part for part in parts if not part.keys]
    everybody: Costs = sum((part.worst_costs for part in added), Counter())
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
        (accounting.epsilon_spent(frozenset((costs + everybody).items()), left) for costs in clients.values()),
        default=accounting.epsilon_spent(frozenset(everybody.items()), left),
    )
    alone = (
        epsilon_at_delta(Budget(part.epsilon, part.stated.delta), at) for part in parts if 0 < part.epsilon < math.inf
    )
    return CombinedEpsilon(max(worst, *alone, 0.0), at, parts)


def read_part(path: Path) -> LedgerPart:
    """Return the part of a run's directory or of a ledger file; raise if the files of the run disagree."""
    if not (path / MANIFEST).is_file():
        file = path / LEDGER if path.is_dir() else path
        account, _ = ledger.read_ledger(file)
        return LedgerPart(path, account, stated_epsilon(account), {})
    stored = run_records.load_run(path)
    summary = consistency.check_evidence(stored)
    if summary is None:
        raise InputError(f"the run at {path} has no epsilon, so it cannot be combined with others: leave it out")
    account, _ = ledger.read_ledger(path / LEDGER, stored.id)
    return LedgerPart(path, account, summary.stated, registered_keys(path, stored.manifest.registry, account))


def registered_keys(path: Path, root: str, account: Account) -> dict[int, str]:
    """Return the fingerprints of the keys of a run's clients, by id; empty without a registry."""
    if not (path / REGISTRY).is_file():
        return {}
    registry = Registry.load(path / REGISTRY)
    check_root(path, registry, root)
    keys = {int(u): identity.signing.hex() for u, identity in registry.items()}
    return keys if keys.keys() >= set(account.clients()) else {}


def check_root(path: Path, registry: Registry, root: str) -> None:
    """Raise LedgerDamaged unless the registry has the root in the manifest."""
    if registry.root().hex() != root:
        raise LedgerDamaged(f"{path / REGISTRY} is not the registry that the run began with: restore it")


def check_gaussian(part: LedgerPart) -> None:
    """Raise InputError if a run states more than it spent and its noise is not Gaussian: it cannot be combined."""
    if not part.account.is_gaussian:
        raise InputError(
            f"{part.path} states more than it spent, and its noise is not Gaussian, so it cannot be combined with "
            "other runs: use dordis ledger verify for it"
        )


def check_once(parts: Sequence[LedgerPart]) -> None:
    """Raise InputError if a run is given twice."""
    runs = Counter(part.account.run for part in parts)
    for run, times in runs.items():
        if times > 1:
            raise InputError(f"the run {run.hex()[:16]} is given twice: give it once")


def without_covered(parts: Sequence[LedgerPart]) -> tuple[LedgerPart, ...]:
    """Return the parts except runs whose cost another part includes, as a predecessor or as a whole run."""
    lines = [{account.run for account in part.account.lineage()} | part.account.runs.keys() for part in parts]
    covered = {run for part, line in zip(parts, lines, strict=True) for run in line - {part.account.run}}
    return tuple(part for part in parts if part.account.run not in covered)
