"""The combined privacy cost of several runs and queries: computed afterwards, or charged in advance to one ledger.

The combined epsilon covers several runs, and ledgers of queries, over one population.  Clients of different runs are
matched by their registered keys.  In a run without a registry clients cannot be matched, so the spending of the client
that has spent most counts for every client.

The ledger of a data set has one budget for all queries and runs on the same data.  Queries are charged round by round.
A run has a ledger of its own, and the ledger of the data set charges the run as a whole to every client: at its planned
epsilon before the run starts, and at its actual cost when the run has ended.  This cost is theta^2, the squared
parameter of theta-GDP (docs/accounting.md).  The run's directory stores the path of the data set's ledger, so that a
resumed or successor run is charged there too.
"""

import math
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from dordis.durable_files import write_atomically
from dordis.errors import InputError, LedgerDamaged, explain_os_errors
from dordis.identity.registry import Registry
from dordis.ledger import verification
from dordis.ledger.client_spending import Account, Budget
from dordis.ledger.entries import RunCharge
from dordis.ledger.ledger import Ledger, read_ledger
from dordis.ledger.round_charge import theta_squared
from dordis.ledger.stated_epsilon import StatedEpsilon, epsilon_at_delta, stated_epsilon
from dordis.privacy import accounting, gdp, record_accounting
from dordis.privacy.accounting import Gaussian, ReleaseCost
from dordis.protocols.parameters import RUN_BYTES
from dordis.records import run_records
from dordis.records.run_records import LEDGER, MANIFEST, REGISTRY

Costs = Counter[ReleaseCost]
NOBODY = -1
"""An id that no client has: in an account it pays only for the runs that are charged as a whole to every client."""


@dataclass(frozen=True)
class LedgerPart:
    """One run or one ledger of queries: its account, its stated epsilon, and the keys of its clients.

    `keys` has the public signing keys in hex, by client id; it is empty if clients cannot be matched with other parts.
    """

    path: Path
    account: Account
    stated: StatedEpsilon
    keys: dict[int, str]

    @property
    def worst_costs(self) -> Costs:
        """Return the costs (see `costs`) of the client that has spent most.

        If no client was charged, return the costs of the runs that are charged as a whole to every client.
        """
        client = self.account.worst_client(self.account.clients())
        return self.costs(NOBODY if client is None else client)

    def costs(self, client: int) -> Costs:
        """Return a client's costs, or one Gaussian release at the stated epsilon if that exceeds the epsilon spent."""
        return self.account.costs(client) if self.stated.is_spent else self._stated_costs

    @cached_property
    def _stated_costs(self) -> Costs:
        """Return the cost of one Gaussian release with the stated epsilon; empty if the epsilon spent is stated."""
        if self.stated.is_spent:
            return Counter()
        check_gaussian(self)
        left = self.stated.delta - float(self.account.failure())
        theta_squared = gdp.theta_budget(self.stated.epsilon, left)
        return Counter([ReleaseCost(Gaussian(1 / math.sqrt(theta_squared)), 0.0)])

    @property
    def how(self) -> str:
        """Return a clause that says how clients of this part are matched with clients of other parts."""
        return "known by their keys" if self.keys else "the worst stands for all"


@dataclass(frozen=True)
class CombinedEpsilon:
    """The largest epsilon of a client over all parts together, at `delta`.

    `parts` has the runs and ledgers that were combined; a run that another part includes is left out.
    """

    epsilon: float
    delta: float
    parts: tuple[LedgerPart, ...]


def combined_epsilon(paths: Sequence[Path], delta: float | None = None) -> CombinedEpsilon:
    """Return the combined epsilon of the runs and ledgers at `paths`, at `delta`: by default their smallest delta.

    A run that another one includes, as a predecessor or as a run charged as a whole, is counted once.  Raise InputError
    if the runs and ledgers cannot be combined.
    """
    if not paths:
        raise InputError("name the runs or ledgers to combine")
    parts = tuple(read_part(path) for path in paths)
    check_once(parts)
    parts = without_covered(parts)
    if any(part.account.budget.records for part in parts):
        return _combine_records(parts, delta)
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
        epsilon_at_delta(Budget(part.stated.epsilon, part.stated.delta), at)
        for part in parts
        if 0 < part.stated.epsilon < math.inf
    )
    return CombinedEpsilon(max(worst, *alone, 0.0), at, parts)


def _combine_records(parts: tuple[LedgerPart, ...], delta: float | None) -> CombinedEpsilon:
    """Return the combined epsilon of runs that protect records: every record is in all of them, and epsilons add up.

    Each run gets an equal part of delta.  So the bound also holds if the results of a run decided how the next is set.
    """
    at = min(part.account.budget.delta for part in parts) if delta is None else accounting.check_delta(delta)
    total = 0.0
    for part in parts:
        if part.account.budget.records is None:
            raise InputError(f"{part.path} protects clients, other runs protect records: combine each kind by itself")
        total += record_accounting.epsilon(part.account.budget.records, at / len(parts) - float(part.account.failure()))
    return CombinedEpsilon(total, at, parts)


def read_part(path: Path) -> LedgerPart:
    """Return the run in a directory, or the ledger in a file, as a part of the combined epsilon.

    A directory without a manifest is read as a ledger too.  Raise LedgerDamaged if the files of the run disagree, and
    InputError if the run has no epsilon.
    """
    if not (path / MANIFEST).is_file():
        file = path / LEDGER if path.is_dir() else path
        account, _ = read_ledger(file)
        return LedgerPart(path, account, stated_epsilon(account), {})
    stored = run_records.load_run(path)
    summary = verification.check_evidence(stored)
    if summary is None:
        raise InputError(f"the run at {path} has no epsilon, so it cannot be combined with others: leave it out")
    account, _ = read_ledger(path / LEDGER, stored.id)
    return LedgerPart(path, account, summary.stated, registered_keys(path, stored.manifest.registry, account))


def registered_keys(path: Path, root: str, account: Account) -> dict[int, str]:
    """Return the signing keys, in hex, of a run's clients by id, from the registry stored with the run.

    The result is empty if there is no registry, or if the registry lacks a charged client.  Raise LedgerDamaged unless
    the registry has `root`, the root that the manifest states.
    """
    if not (path / REGISTRY).is_file():
        return {}
    registry = Registry.load(path / REGISTRY)
    check_root(path, registry, root)
    keys = {int(u): identity.signing.hex() for u, identity in registry.items()}
    return keys if keys.keys() >= set(account.clients()) else {}


def check_root(path: Path, registry: Registry, root: str) -> None:
    """Raise LedgerDamaged unless the registry has `root`, the root that the manifest states."""
    if registry.root().hex() != root:
        raise LedgerDamaged(f"{path / REGISTRY} is not the registry that the run began with: restore it")


def check_gaussian(part: LedgerPart) -> None:
    """Raise InputError unless the costs of a run are composed as in Gaussian DP, by adding theta^2.

    This is required of a run whose stated epsilon exceeds the epsilon spent, because such a run is counted as one
    Gaussian release with the stated epsilon.
    """
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
    """Return the parts, except runs whose cost another part includes: as a predecessor, or as a run charged to it."""
    lines = [{account.run for account in part.account.lineage()} | part.account.runs.keys() for part in parts]
    covered = {run for part, line in zip(parts, lines, strict=True) for run in line - {part.account.run}}
    return tuple(part for part in parts if part.account.run not in covered)


DATA_LEDGER = "data_ledger.txt"
"""Name of the file in a run's directory that has the path of the ledger of its data set."""


def open_data_ledger(path: str | Path, delta: float, budget: float | None) -> Ledger:
    """Return the ledger of a data set; if it is missing, create it with the budget (`budget`, `delta`).

    With `budget` None a new ledger counts spending and stops nothing.  Raise InputError if a budget is given and the
    existing ledger has another one.
    """
    where = Path(path)
    with explain_os_errors(f"keep a ledger at {where}"):
        if not where.exists():
            return Ledger.create(where, secrets.token_bytes(RUN_BYTES), Budget(budget, delta))
        ledger = Ledger.open(where)
    if budget not in (None, ledger.summary().budget):
        raise InputError(f"the ledger {where} has another budget, which cannot be changed: give no budget")
    return ledger


def find_data_ledger(run: Path) -> Path | None:
    """Return the path of the ledger of a data set to which the run at `run` is charged; None if it is charged to none.

    Raise InputError if the ledger is missing.
    """
    try:
        path = Path((run / DATA_LEDGER).read_text(encoding="utf-8").strip())
    except OSError:
        return None
    if not path.is_file():
        raise InputError(f"the run at {run} is charged to the ledger {path}, which is missing: restore it there")
    return path


@dataclass(frozen=True)
class PlannedRun:
    """A run's charge in the ledger of its data set: call `start` before the run's first round, `settle` after its end.

    An interrupted run stays charged at its planned epsilon, so that it can be resumed.
    """

    ledger: Ledger
    charge: RunCharge
    """The cost of the run, without the cost of its predecessors."""
    covered: float = 0.0
    """The cost theta^2 already charged for the run's predecessors, whose rounds the run's account contains too."""

    @classmethod
    def open(
        cls,
        path: str | Path,
        limit: float | None,
        label: str,
        budget: Budget,
        failure: float,
        predecessor: Path | None = None,
    ) -> "PlannedRun":
        """Return the planned charge of a run in the data set's ledger at `path`; `label` names the run in this ledger.

        Nothing is charged yet, but BudgetExceeded is raised if the charge would exceed the budget of this ledger.  If
        this ledger is missing, it is created with the epsilon `limit` as its budget; with `limit` None it counts
        spending and stops nothing.  Raise InputError if the ledger exists with another budget than `limit` (None fits
        every budget).  `budget` is the budget of the run itself; raise InputError if its epsilon is None, so that no
        spending would stop the run.  `failure` bounds the chance that in any round of the run the graph is insecure or
        more than T_C colluders are selected.  `predecessor` is the directory of the run that this one continues.
        """
        if budget.epsilon is None:
            raise InputError(
                "this run has no epsilon at which it stops, so it cannot be charged to a ledger over several runs"
            )
        ledger = open_data_ledger(path, budget.delta, limit)
        covered = 0.0 if predecessor is None else _theta_charged(ledger, predecessor)
        planned = _beyond(gdp.theta_budget(budget.epsilon, budget.delta), covered)
        charge = RunCharge(label, planned, Fraction(failure))
        ledger.check_run(charge)
        return cls(ledger, charge, covered)

    @classmethod
    def resume(cls, run: Path) -> "PlannedRun | None":
        """Return the planned charge of a run that is resumed; None if no ledger of a data set charges the run."""
        path = find_data_ledger(run)
        if path is None:
            return None
        charged, own = read_ledger(path)[0].runs, read_ledger(run / LEDGER)[0]
        if own.run not in charged:
            raise InputError(f"the ledger {path} does not contain the run at {run}: restore the newest copy of it")
        before = sum(charged[one.run].theta_squared for one in list(own.lineage())[1:] if one.run in charged)
        return cls(Ledger.open(path), charged[own.run], before)

    def start(self, run: bytes, path: Path) -> None:
        """Charge the run at its planned epsilon, and write the ledger's path into `path`, the run's directory."""
        self.ledger.charge_run(run, self.charge)
        write_atomically(path / DATA_LEDGER, f"{self.ledger.path.resolve()}\n".encode())

    def settle(self, run: bytes, path: Path) -> float:
        """Lower the charge of the ended run in directory `path` to its actual cost, if that is less.

        The actual cost is that of the client that spent most, or of the stated epsilon if that is larger.  Return the
        largest epsilon of a client in the data set's ledger.
        """
        part = read_part(path)
        spent = accounting.compose_costs((theta_squared(cost.event), times) for cost, times in part.worst_costs.items())
        if spent > 0 and _beyond(spent, self.covered) < self.charge.theta_squared:
            failure = min(self.charge.failure, part.account.failure())
            self.ledger.charge_run(run, RunCharge(self.charge.label, _beyond(spent, self.covered), failure))
        return self.ledger.spent()[0]


def _beyond(theta_squared: float, covered: float) -> float:
    """Return the charge for a run: `theta_squared`, which includes its predecessors, minus their charge `covered`.

    The charge is at least 2^-40 `theta_squared`, because a charge of 0 is invalid.
    """
    return max(theta_squared - covered, 2.0**-40 * theta_squared)


def _theta_charged(ledger: Ledger, run: Path) -> float:
    """Return the cost theta^2 at which the ledger of a data set charges the run at `run` and its predecessors."""
    charged = read_ledger(ledger.path)[0].runs
    return sum(charged[one.run].theta_squared for one in read_ledger(run / LEDGER)[0].lineage() if one.run in charged)
