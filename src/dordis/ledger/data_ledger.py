"""The ledger of a data set: one budget for all queries and runs on the same data.

Queries are charged round by round.  A run has its own ledger; here it is charged as a whole, to every client: at its
planned epsilon before it starts, and at its actual cost when it has ended.  The run's directory stores the path of this
ledger, so that a resumed or successor run is charged here too.
"""

import secrets
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from dordis.durable_files import write_atomically
from dordis.errors import InputError
from dordis.ledger.client_spending import Budget
from dordis.ledger.combine_runs import read_part
from dordis.ledger.entries import RunCharge
from dordis.ledger.ledger import Ledger, read_ledger
from dordis.ledger.round_charge import theta_squared
from dordis.privacy import accounting, gdp
from dordis.protocols.parameters import RUN_BYTES
from dordis.records.run_records import LEDGER

DATA_LEDGER = "data_ledger.txt"
"""Name of the file in a run's directory that has the path of the ledger of its data set."""


def open_data_ledger(path: str | Path, delta: float, budget: float | None) -> Ledger:
    """Return the ledger of a data set, created with this budget if missing; raise InputError if its budget differs."""
    where = Path(path)
    try:
        if not where.exists():
            return Ledger.create(where, secrets.token_bytes(RUN_BYTES), Budget(budget, delta))
        ledger = Ledger.open(where)
    except OSError as error:
        raise InputError(f"cannot keep a ledger at {where}: {error.strerror}") from None
    if budget not in (None, ledger.summary().budget):
        raise InputError(f"the ledger {where} has another budget, which cannot be changed: give no budget")
    return ledger


def find_data_ledger(run: Path) -> Path | None:
    """Return the path of the ledger that a run is charged to, or None; raise InputError if that file is missing."""
    try:
        path = Path((run / DATA_LEDGER).read_text(encoding="utf-8").strip())
    except OSError:
        return None
    if not path.is_file():
        raise InputError(f"the run at {run} is charged to the ledger {path}, which is missing: restore it there")
    return path


@dataclass(frozen=True)
class PlannedRun:
    """A run's charge in the ledger of its data set: call `start` before its first round, `settle` after its end.

    An interrupted run stays charged at its planned epsilon, so that it can be resumed.
    """

    ledger: Ledger
    charge: RunCharge
    """The cost of the run without that of its predecessors."""
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
        """Return the planned charge of a run; raise `BudgetExceeded` if the ledger's budget does not cover it.

        The ledger is created with the epsilon `limit` if missing.  `budget` is the run's own; its epsilon is None if
        the run has no epsilon, or does not stop at one.
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
        """Return the planned charge of a resumed run; None if it is charged to no ledger of a data set."""
        path = find_data_ledger(run)
        if path is None:
            return None
        charged, own = read_ledger(path)[0].runs, read_ledger(run / LEDGER)[0]
        if own.run not in charged:
            raise InputError(f"the ledger {path} does not contain the run at {run}: restore the newest copy of it")
        before = sum(charged[one.run].theta_squared for one in list(own.lineage())[1:] if one.run in charged)
        return cls(Ledger.open(path), charged[own.run], before)

    def start(self, run: bytes, path: Path) -> None:
        """Charge the run at its planned epsilon, and write the path of the ledger into the run's directory."""
        self.ledger.charge_run(run, self.charge)
        write_atomically(path / DATA_LEDGER, f"{self.ledger.path.resolve()}\n".encode())

    def settle(self, run: bytes, path: Path) -> float:
        """Charge the run at its actual largest spending of a client, if that is less; return the ledger's epsilon."""
        part = read_part(path)
        spent = accounting.compose_costs((theta_squared(cost.event), times) for cost, times in part.worst_costs.items())
        if spent > 0 and _beyond(spent, self.covered) < self.charge.theta_squared:
            failure = min(self.charge.failure, part.account.failure())
            self.ledger.charge_run(run, RunCharge(self.charge.label, _beyond(spent, self.covered), failure))
        return self.ledger.spent()[0]


def _beyond(theta_squared: float, covered: float) -> float:
    """Return the cost `theta_squared` less `covered`, but always above 0, because every run has a charge."""
    return max(theta_squared - covered, 2.0**-40 * theta_squared)


def _theta_charged(ledger: Ledger, run: Path) -> float:
    """Return the cost theta^2 that a ledger charges for a run and its predecessors."""
    charged = read_ledger(ledger.path)[0].runs
    return sum(charged[one.run].theta_squared for one in read_ledger(run / LEDGER)[0].lineage() if one.run in charged)
