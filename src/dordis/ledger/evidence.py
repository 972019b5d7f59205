"""Checks that the files of a run agree: its ledger, receipts, records of rounds, and model.

A ledger that was shortened, or altered and hashed again, is valid by itself.  The receipts name its head after every
finished round, and records and model name the rounds: together they show what is missing.  Consistent changes of all
files show only to signatures (`verification`), and to parties that kept a head or a receipt elsewhere.
"""

import math
from collections.abc import Collection, Mapping

from dordis.errors import LedgerDamaged
from dordis.ledger import ledger
from dordis.ledger.client_spending import Account
from dordis.ledger.ledger import LedgerSummary
from dordis.ledger.receipt import Receipt, check_chain, read_receipt_files
from dordis.ledger.stated_epsilon import StatedEpsilon, check_budget_stated, stated_epsilon, summarise
from dordis.records.manifest import Predecessor
from dordis.records.run_records import LEDGER, MODEL, RECEIPTS, RESULT, ROUNDS, RoundRecord, StoredRun

_CLOSE = 1e-6


def check_evidence(run: StoredRun) -> LedgerSummary | None:
    """Return the summary of a run's ledger if all files of the run agree; None if the run proves nothing.

    Raise `LedgerDamaged` if they disagree: then no epsilon can be stated.
    """
    check_order(run)
    if run.result is not None:  # while a run is open, its model may be older than the lines
        check_last(run)
    if not run.manifest.trust.proves:
        return None
    account, heads = ledger.read_ledger(run.path / LEDGER, run.id)
    check_predecessor(run.manifest.predecessor, account, heads)
    check_budget_stated(account, run.manifest)
    receipts = read_receipts(run)
    check_chain(receipts)
    check_receipts(receipts, account, heads)
    check_rounds(run.rounds, receipts, account)
    check_course(run.rounds, account)
    stated = stated_epsilon(account, run.manifest, run.evident)
    check_recorded(run, stated)
    return summarise(account, heads, stated)


def check_predecessor(named: Predecessor | None, account: Account, heads: Collection[str]) -> None:
    """The ledger continues that of the predecessor in the manifest, if there is one."""
    before = "" if account.predecessor is None else account.predecessor.run.hex()
    if before != ("" if named is None else named.run) or (named is not None and named.head not in heads):
        raise LedgerDamaged(
            "the privacy ledger lacks the rounds of the predecessor, which its clients paid for: restore it"
        )


def read_receipts(run: StoredRun) -> dict[int, Receipt]:
    """Return the receipts of a run by index; raise LedgerDamaged for one that is malformed or of another run."""
    receipts = read_receipt_files(run.path / RECEIPTS)
    for receipt in receipts.values():
        check_receipt(receipt, run)
    return receipts


def check_receipt(receipt: Receipt, run: StoredRun) -> None:
    """The receipt is of this run."""
    if receipt.run != run.id.hex():
        raise LedgerDamaged(f"the receipt {receipt.file_name} is of another run or round: restore the right one")


def check_receipts(receipts: Mapping[int, Receipt], account: Account, heads: Collection[str]) -> None:
    """The ledger has the head of every receipt, and its round with the same clients and dropouts."""
    for index, receipt in receipts.items():
        if receipt.ledger not in heads:
            raise LedgerDamaged(
                f"the privacy ledger lacks the line that the receipt of round index {index} names: it was cut, or "
                "altered and hashed again; restore it"
            )
        if not receipt.agrees_with(account.rounds.get(index)):
            raise LedgerDamaged(f"the privacy ledger and the receipt of round index {index} contradict each other")


def check_order(run: StoredRun) -> None:
    """Recorded rounds have consecutive numbers and increasing indices, including the round of the model."""
    numbers, indices = [record.number for record in run.rounds], [record.index for record in run.rounds]
    expected = list(range(run.manifest.before + 1, run.manifest.before + 1 + len(numbers)))
    if numbers != expected or indices != sorted(set(indices)):
        raise LedgerDamaged(f"{ROUNDS} and {MODEL} do not name every round once, in order: restore the right ones")


def check_rounds(rounds: Collection[RoundRecord], receipts: Mapping[int, Receipt], account: Account) -> None:
    """Every finished round has a receipt and a completed charge with the same clients."""
    for record in rounds:
        known = account.rounds.get(record.index)
        if known is None or known.state != "completed":
            raise LedgerDamaged(f"round {record.number} is recorded and not in the privacy ledger: restore the ledger")
        if record.index not in receipts:
            raise LedgerDamaged(f"the receipt of round {record.number} is missing: restore the directory {RECEIPTS}")
        if not receipts[record.index].is_of(record):
            raise LedgerDamaged(f"round {record.number}: {ROUNDS} and the receipt disagree; restore both from a backup")


def check_course(rounds: Collection[RoundRecord], account: Account) -> None:
    """The epsilon recorded after each round equals the one recomputed from the ledger."""
    for record in rounds:
        if not is_close(record.epsilon, account.epsilon_after(record.index)):
            raise LedgerDamaged(
                f"round {record.number}: the epsilon in {ROUNDS} is not the one that the privacy ledger gives; restore "
                "both from a backup"
            )


def is_close(first: float | None, second: float | None) -> bool:
    """Tell whether two epsilons are equal but for rounding on another machine; False if one is missing."""
    return first is not None and second is not None and math.isclose(first, second, rel_tol=_CLOSE)


def check_recorded(run: StoredRun, stated: StatedEpsilon) -> None:
    """Spent and stated epsilon in the result are not above those from the ledger."""
    if run.result is None:
        return
    for said, known in ((run.result.spent, stated.spent), (run.result.epsilon, stated.epsilon)):
        if said is not None and known < said * (1 - _CLOSE):
            raise LedgerDamaged(
                f"{RESULT} has an epsilon of {said:.4g}, and the privacy ledger gives {known:.4g}: lines are "
                "missing from the ledger; restore it from a backup"
            )


def check_model(run: StoredRun) -> None:
    """A run with finished rounds has a model, without which it cannot be resumed."""
    finished = run.rounds or (run.result is not None and run.result.rounds > run.manifest.before)
    if finished and not (run.path / MODEL).exists():
        raise LedgerDamaged(f"the run at {run.path} has finished rounds and no {MODEL}: restore it, or start a new run")


def check_last(run: StoredRun) -> None:
    """The model, if there is one, is that after the last round."""
    if run.rounds and run.rounds[-1] != run.last and (run.path / MODEL).exists():
        raise LedgerDamaged(f"the {MODEL} of the run at {run.path} is not that after its last round: restore it")
