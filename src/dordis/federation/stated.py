"""Which epsilon is stated of a run: one function of its ledger and its manifest, for every command, page and file.

What a run has spent may be stated if all planned rounds took place, or if the budget itself refused the next one: then
nobody's look at the results decided when it ended.  In every other case the budget is stated.  A successor states at
least the budget of every run before it: otherwise a smaller budget would hide that somebody stopped after looking.
"""

import math
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from dordis.errors import LedgerDamaged
from dordis.federation.account import Account, Budget
from dordis.federation.charges import Charge
from dordis.federation.manifest import Manifest
from dordis.privacy import accounting, gdp

_CLOSE = 1e-6


class Basis(Enum):
    """Why this epsilon is stated, and not another one."""

    FINISHED = "all planned rounds took place, so that what was spent is stated"
    RULE = "the budget refused the next round, so that what was spent is stated"
    EARLY = (
        "the run has not finished its planned rounds, and its budget did not end it: whoever ends a run because of its "
        "results states its budget, for when it ends depends on the data"
    )
    BEFORE = "a run that goes on from others states at least the budget of each of them"
    ALONE = "without the manifest of its run nobody knows how it was to end, so that the budget is stated"
    UNLIMITED = "this ledger has no budget, so that what was spent so far is stated"


@dataclass(frozen=True)
class StatedEpsilon:
    """The epsilon that is stated of a run, at `delta`, with what its client that has spent most has spent."""

    epsilon: float
    spent: float
    delta: float
    budget: float | None
    """The epsilon that the run was planned for; None where no budget was set."""
    basis: Basis

    @property
    def is_spent(self) -> bool:
        """Tell whether what is stated is what was spent."""
        return self.epsilon == self.spent


def stated_epsilon(account: Account, manifest: Manifest | None = None, recorded: int = 0) -> StatedEpsilon:
    """Return the epsilon to state of a run, from its ledger and its manifest, or of a ledger without a manifest.

    `recorded` counts the finished rounds that receipts, records and model bear out, those of runs before included:
    fewer than planned raise what is stated, and more than the ledger has completed do not lower it.
    """
    worst, delta = account.worst(account.clients()), account.budget.delta
    spent = 0.0 if worst is None else account.epsilon(worst)
    budget = account.budget.epsilon if manifest is None else manifest.budget
    basis = _basis(account, manifest, recorded)
    own = budget if basis in (Basis.EARLY, Basis.ALONE) and budget is not None else 0.0
    before = max((at_delta(one, delta) for one in budgets_before(account, manifest)), default=0.0)
    basis = Basis.BEFORE if before > max(spent, own) else basis
    return StatedEpsilon(max(spent, own, before), spent, delta, budget, basis)


def _basis(account: Account, manifest: Manifest | None, recorded: int) -> Basis:
    if manifest is None:
        return Basis.UNLIMITED if account.budget.epsilon is None else Basis.ALONE
    if min(recorded, manifest.before + account.completed) >= manifest.rounds:
        return Basis.FINISHED
    return Basis.RULE if is_ended_by_budget(account, manifest) else Basis.EARLY


def budgets_before(account: Account, manifest: Manifest | None) -> list[Budget]:
    """Return the budgets of the runs before, as the ledger has them and as the manifest names the largest."""
    budgets = [one.budget for one in account.line() if one is not account and one.budget.epsilon is not None]
    before = None if manifest is None else manifest.predecessor
    if before is not None and before.budget is not None:
        budgets.append(Budget(before.budget, account.budget.delta if before.delta is None else before.delta))
    return budgets


def at_delta(budget: Budget, delta: float) -> float:
    """Return the epsilon of a budget at another delta: the same at a larger one, that of its theta^2 at a smaller."""
    if budget.epsilon is None or delta >= budget.delta:
        return budget.epsilon or 0.0
    return max(budget.epsilon, gdp.epsilon(gdp.theta_budget(budget.epsilon, budget.delta), delta))


def is_ended_by_budget(account: Account, manifest: Manifest) -> bool:
    """Tell whether the last line of a run shows that its budget refused a round such as the manifest plans.

    That the refused round passes the budget is checked whenever the ledger is read.  Here it is compared with the plan:
    it is like the rounds of the run, it passes the budget at the delta that is left, and with no dropout as many such
    rounds as a client may take part in keep the budget.  So whoever forges such a line gains about one round.
    """
    refused = account.refused
    if refused is None or not manifest.trust.stops or manifest.budget is None:
        return False
    if not (is_like_rounds(refused, account, manifest) and account.is_beyond_budget(refused)):
        return False
    return _planned_epsilon(refused, account, manifest.plan.cap) <= manifest.budget * (1 + _CLOSE)


def is_like_rounds(refused: Charge, account: Account, manifest: Manifest) -> bool:
    """Tell whether a refused round has T_C of the plan, no larger part that may drop out, and the noise of the run.

    Its scheme, chance of failure and prices are those of the first round that was charged, to which receipts hold the
    ledger: with others a round could be as dear as one likes if clients drop out, and cheap if nobody does.
    """
    charged = [next(iter(one.rounds.values())).charge for one in account.line() if one.rounds]
    if not charged or _noise_law(refused) != _noise_law(charged[0]) or refused.colluders != manifest.plan.colluders:
        return False
    return refused.tolerance * manifest.per_round <= manifest.plan.tolerance * len(refused.clients)


def _noise_law(charge: Charge) -> tuple[object, ...]:
    return charge.scheme, charge.failure, [(release.mechanism, release.prices) for release in charge.releases]


def _planned_epsilon(charge: Charge, account: Account, cap: int) -> float:
    """Return the epsilon of `cap` rounds like this one, if nobody drops out."""
    left = account.budget.delta - float(account.failure(charge))
    costs = Counter({cost: cap * times for cost, times in Counter(charge.best.costs()).items()})
    return accounting.spent(frozenset(costs.items()), left, account.is_renyi) if left > 0 else math.inf


def check_budget_stated(account: Account, manifest: Manifest) -> None:
    """The budget in the ledger is that of the manifest: no epsilon where the strategy counts and does not stop."""
    expected = Budget(manifest.budget if manifest.trust.stops else None, manifest.plan.delta)
    if account.budget != expected:
        raise LedgerDamaged(
            f"the privacy ledger has the budget {_written(account.budget)}, the manifest {_written(expected)}: restore "
            "the ledger"
        )


def _written(budget: Budget) -> str:
    return f"(epsilon {budget.epsilon}, delta {budget.delta})"
