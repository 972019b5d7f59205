"""The stated epsilon of a run, from its ledger and its manifest, for all commands, pages and files.

The epsilon spent may be stated if all planned rounds took place, or if the budget refused the next round: then the end
of the run did not depend on its results.  In all other cases the budget is stated, or the epsilon spent if that is
larger or if there is no budget.  If records are sampled, the epsilon of all planned events is stated.  A successor
states at least the budget of every predecessor.  Without this rule a successor with a small budget could hide that its
predecessor was stopped because of the predecessor's results.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from dordis.errors import BudgetExceeded, LedgerDamaged
from dordis.ledger.client_spending import Account, Budget
from dordis.ledger.round_charge import Charge
from dordis.privacy import gdp
from dordis.privacy.accounting import PAPER
from dordis.records.manifest import Manifest

_CLOSE = 1e-6


class Basis(Enum):
    """The reason for the stated epsilon, as a clause for reports."""

    FINISHED = "all planned rounds took place, so the epsilon spent is stated"
    RULE = "the budget refused the next round, so the epsilon spent is stated"
    EARLY = (
        "the run has not finished its planned rounds, and its budget did not end it; somebody may have ended it "
        "because of its results, so the budget is stated"
    )
    BEFORE = "a successor states at least the budget of every predecessor"
    ALONE = "the manifest of the run is missing, so its planned end is unknown and the budget is stated"
    PLAN = "records are sampled, so the epsilon of all planned events is stated, however the run ended"
    UNLIMITED = "this ledger has no budget, so the epsilon spent so far is stated"


@dataclass(frozen=True)
class StatedEpsilon:
    """The stated epsilon of a run at `delta`, and the largest epsilon spent by a client."""

    epsilon: float
    spent: float
    delta: float
    budget: float | None
    """The planned epsilon of the run; None if it had no budget."""
    basis: Basis

    @property
    def is_spent(self) -> bool:
        return self.epsilon == self.spent


def stated_epsilon(account: Account, manifest: Manifest | None = None, recorded: int = 0) -> StatedEpsilon:
    """Return the stated epsilon of a run from the account of its ledger; without a manifest its planned end is unknown.

    `recorded` is the number of finished rounds that receipts, records and model confirm, predecessors' rounds included.
    The run counts as finished only if both `recorded` and the ledger reach the planned number of rounds.
    """
    worst, delta = account.worst_client(account.clients()), account.budget.delta
    spent = account.epsilon_with_run() if worst is None else account.epsilon(worst)
    budget = account.budget.epsilon if manifest is None else manifest.budget
    if account.budget.records is not None:
        whole = account.epsilon_of_records()
        return StatedEpsilon(whole, whole, delta, budget, Basis.PLAN)
    basis = _basis(account, manifest, recorded)
    own = budget if basis in (Basis.EARLY, Basis.ALONE) and budget is not None else 0.0
    before = max((epsilon_at_delta(one, delta) for one in predecessor_budgets(account, manifest)), default=0.0)
    basis = Basis.BEFORE if before > max(spent, own) else basis
    return StatedEpsilon(max(spent, own, before), spent, delta, budget, basis)


def _basis(account: Account, manifest: Manifest | None, recorded: int) -> Basis:
    if manifest is None:
        return Basis.UNLIMITED if account.budget.epsilon is None else Basis.ALONE
    if min(recorded, manifest.before + account.completed) >= manifest.rounds:
        return Basis.FINISHED
    return Basis.RULE if is_ended_by_budget(account, manifest) else Basis.EARLY


def predecessor_budgets(account: Account, manifest: Manifest | None) -> list[Budget]:
    """Return the budgets of a run's predecessors, as far as they have an epsilon.

    They are the budgets in the ledger and, as one further budget, the largest epsilon that the manifest states for all
    predecessors.
    """
    budgets = [one.budget for one in account.lineage() if one is not account and one.budget.epsilon is not None]
    before = None if manifest is None else manifest.predecessor
    if before is not None and before.budget is not None:
        budgets.append(Budget(before.budget, account.budget.delta if before.delta is None else before.delta))
    return budgets


def epsilon_at_delta(budget: Budget, delta: float) -> float:
    """Return an epsilon that holds at `delta`: that of the budget, or a larger one if `delta` is below the budget's.

    Return 0 if the budget's epsilon is None.  Such a budget bounds nothing; callers use the result only in a maximum.
    """
    if budget.epsilon is None or delta >= budget.delta:
        return budget.epsilon or 0.0
    return max(budget.epsilon, gdp.epsilon(gdp.theta_budget(budget.epsilon, budget.delta), delta))


def is_ended_by_budget(account: Account, manifest: Manifest) -> bool:
    """Tell whether the budget ended the run: the ledger's last line refuses a round, and this line is credible.

    Somebody who ended a run because of its results could forge such a line, so that only the epsilon spent is stated
    and not the budget.  Therefore the refused round must fulfil three conditions.  It must be like the run's rounds
    (`is_like_rounds`).  It must exceed the budget even without its `failure` (`Account.is_beyond_budget`).  And
    without dropout a client could afford as many such rounds as the participation cap allows.  A forged line that
    fulfils them lowers the stated epsilon by no more than about the cost of one round.
    """
    refused = account.refused
    if refused is None or not manifest.trust.stops or manifest.budget is None:
        return False
    if not (is_like_rounds(refused, account, manifest) and account.is_beyond_budget(refused)):
        return False
    return _planned_epsilon(refused, account, manifest.plan.cap) <= manifest.budget * (1 + _CLOSE)


def is_like_rounds(refused: Charge, account: Account, manifest: Manifest) -> bool:
    """Tell whether a refused round keeps to the planned T_C and T / n, with noise like that of the first charged round.

    T_C must be the planned one, and T / n at most the planned one.  Noise scheme, chance of failure, mechanisms and
    prices must equal those of the first charged round, which the receipts confirm: the first of this run or, if it has
    none, of the latest predecessor that has one.  Otherwise somebody could forge the refusal of a round that
    exceeds the budget with dropout only, and so end the run as if by its budget (`is_ended_by_budget`).
    """
    charged = [next(iter(one.rounds.values())).charge for one in account.lineage() if one.rounds]
    if not charged or _noise_law(refused) != _noise_law(charged[0]) or refused.colluders != manifest.plan.colluders:
        return False
    return refused.tolerance * manifest.per_round <= manifest.plan.tolerance * len(refused.clients)


def _noise_law(charge: Charge) -> tuple[object, ...]:
    return charge.scheme, charge.failure, [(release.mechanism, release.prices) for release in charge.releases]


def _planned_epsilon(charge: Charge, account: Account, cap: int) -> float:
    """Return the epsilon of `cap` rounds, each at the cost that the round of `charge` would have without dropout."""
    left = account.budget.delta - float(account.failure(charge))
    costs = Counter({cost: cap * times for cost, times in Counter(charge.without_dropout.costs()).items()})
    return account.compose(frozenset(costs.items()), left)


def check_budget_stated(account: Account, manifest: Manifest) -> None:
    """Raise LedgerDamaged unless the ledger has the manifest's budget, with epsilon None if spending stops no round."""
    planned = manifest.plan.records or None
    paper = manifest.config.get("privacy", {}).get("accounting") == PAPER
    expected = Budget(manifest.budget if manifest.trust.stops else None, manifest.plan.delta, planned, paper)
    if account.budget != expected:
        raise LedgerDamaged(
            f"the privacy ledger has the budget {_describe(account.budget)}, and the manifest {_describe(expected)}: "
            "restore the ledger from a backup"
        )


def _describe(budget: Budget) -> str:
    return f"(epsilon {budget.epsilon}, delta {budget.delta}{', as in the paper' if budget.paper else ''})"


@dataclass(frozen=True)
class LedgerSummary:
    """The content of a ledger, with every epsilon recomputed.

    `clients` has the epsilon that every client has spent, at `delta`; `worst` is the client that has spent most.
    `head` is the hash of the last line; keep it to verify later that no line is missing.
    """

    run: str
    head: str
    lines: int
    reserved: int
    """Number of rounds that are charged and not completed: still open, or failed after the charge."""
    completed: int
    delta: float
    budget: float | None
    epsilon: float
    """The epsilon spent by the client `worst`; the epsilon to publish is `stated`."""
    stated: StatedEpsilon
    worst: int | None
    clients: dict[int, float]
    mechanisms: tuple[str, ...]
    """Names of all mechanisms in the charges."""
    gaussian: bool = True
    """Whether all charges were composed as Gaussian noise; False if they were composed by Renyi divergences."""
    predecessors: tuple[str, ...] = ()
    """Run ids of the predecessors, the latest first; their rounds are counted too."""
    failure: float = 0.0
    """The part of delta that covers failures of graphs and selections."""

    def check_budget(self) -> None:
        """Raise `BudgetExceeded` if a client has spent more than the budget."""
        if self.worst is not None and self.budget is not None and self.epsilon > self.budget:
            raise BudgetExceeded(self.worst, self.epsilon, self.budget)


def summarise(account: Account, heads: Sequence[str], stated: StatedEpsilon | None = None) -> LedgerSummary:
    """Return the summary of an account; `heads` has the hashes of the ledger's lines.

    If `stated` is None, the stated epsilon is computed without a manifest.
    """
    spent = {u: account.epsilon(u) for u in account.clients()}
    worst = account.worst_client(spent)
    rounds = [entry for one in account.lineage() for entry in one.rounds.values()]
    states, charged = Counter(entry.state for entry in rounds), [entry.charge for entry in rounds]
    return LedgerSummary(
        run=account.run.hex(),
        head=heads[-1],
        lines=len(heads),
        reserved=states["reserved"],
        completed=states["completed"],
        delta=account.budget.delta,
        budget=account.budget.epsilon,
        epsilon=account.epsilon_with_run() if worst is None else spent[worst],
        stated=stated_epsilon(account) if stated is None else stated,
        worst=worst,
        clients=spent,
        mechanisms=tuple(sorted({release.mechanism_name for charge in charged for release in charge.releases})),
        gaussian=account.is_gaussian,
        failure=float(account.failure()),
        predecessors=tuple(one.run.hex() for one in account.lineage())[1:],
    )
