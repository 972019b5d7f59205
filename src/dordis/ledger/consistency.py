"""Checks that the files of a run agree: ledger, receipts, records of rounds, and model.

A ledger that was shortened, or altered and hashed again, is valid by itself.  But receipts name the ledger's head after
every finished round, and records and model name the rounds, so missing lines are found.  Consistent changes of all
files are found only by signatures (`verification`), or by parties that kept a head or a receipt.
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
    """Return the summary of a run's ledger; None if the run has no epsilon.

    Raise `LedgerDamaged` if the files of the run disagree: then no epsilon can be stated.
    """
    check_order(run)
    if run.result is not None:  # while a run is open, its model may be older than its records
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
    """Raise LedgerDamaged unless the ledger contains that of the predecessor in the manifest, if there is one."""
    before = "" if account.predecessor is None else account.predecessor.run.hex()
    if before != ("" if named is None else named.run) or (named is not None and named.head not in heads):
        raise LedgerDamaged(
            "the privacy ledger lacks the rounds of the predecessor run, which count for the same clients: restore it"
        )


def read_receipts(run: StoredRun) -> dict[int, Receipt]:
    """Return the receipts of a run by index; raise LedgerDamaged if one is malformed or of another run."""
    receipts = read_receipt_files(run.path / RECEIPTS)
    for receipt in receipts.values():
        check_receipt(receipt, run)
    return receipts


def check_receipt(receipt: Receipt, run: StoredRun) -> None:
    """Raise LedgerDamaged unless a receipt is of this run."""
    if receipt.run != run.id.hex():
        raise LedgerDamaged(f"the receipt {receipt.file_name} is of another run or round: restore the right one")


def check_receipts(receipts: Mapping[int, Receipt], account: Account, heads: Collection[str]) -> None:
    """Raise LedgerDamaged if the ledger lacks the head in a receipt, or its round, clients and dropouts differ."""
    for index, receipt in receipts.items():
        if receipt.ledger not in heads:
            raise LedgerDamaged(
                f"the privacy ledger lacks the line that the receipt of round index {index} names: it was cut, or "
                "altered and hashed again; restore it"
            )
        if not receipt.agrees_with(account.rounds.get(index)):
            raise LedgerDamaged(f"the privacy ledger and the receipt of round index {index} contradict each other")


def check_order(run: StoredRun) -> None:
    """Raise LedgerDamaged unless recorded rounds and model have consecutive numbers and increasing indices."""
    numbers, indices = [record.number for record in run.rounds], [record.index for record in run.rounds]
    expected = list(range(run.manifest.before + 1, run.manifest.before + 1 + len(numbers)))
    if numbers != expected or indices != sorted(set(indices)):
        raise LedgerDamaged(f"{ROUNDS} and {MODEL} do not list every round once, in order: restore both from a backup")


def check_rounds(rounds: Collection[RoundRecord], receipts: Mapping[int, Receipt], account: Account) -> None:
    """Raise LedgerDamaged if a recorded round lacks a receipt, or a completed charge, with the same clients."""
    for record in rounds:
        known = account.rounds.get(record.index)
        if known is None or known.state != "completed":
            raise LedgerDamaged(
                f"round {record.number} is in {ROUNDS} but not in the privacy ledger: restore the ledger"
            )
        if record.index not in receipts:
            raise LedgerDamaged(f"the receipt of round {record.number} is missing: restore the directory {RECEIPTS}")
        if not receipts[record.index].matches_record(record):
            raise LedgerDamaged(f"round {record.number}: {ROUNDS} and the receipt disagree; restore both from a backup")


def check_course(rounds: Collection[RoundRecord], account: Account) -> None:
    """Raise LedgerDamaged if the epsilon recorded after a round differs from the one recomputed from the ledger."""
    for record in rounds:
        if not is_close(record.epsilon, account.epsilon_after(record.index)):
            raise LedgerDamaged(
                f"round {record.number}: the epsilon in {ROUNDS} is not the one that the privacy ledger gives; restore "
                "both from a backup"
            )


def is_close(first: float | None, second: float | None) -> bool:
    """Tell whether two epsilons are equal up to rounding on another machine; False if one is None."""
    return first is not None and second is not None and math.isclose(first, second, rel_tol=_CLOSE)


def check_recorded(run: StoredRun, stated: StatedEpsilon) -> None:
    """Raise LedgerDamaged if the result states or spends a larger epsilon than the ledger gives."""
    if run.result is None:
        return
    for said, known in ((run.result.spent, stated.spent), (run.result.epsilon, stated.epsilon)):
        if said is not None and known < said * (1 - _CLOSE):
            raise LedgerDamaged(
                f"{RESULT} has an epsilon of {said:.4g}, and the privacy ledger gives {known:.4g}: lines are "
                "missing from the ledger; restore it from a backup"
            )


def check_model(run: StoredRun) -> None:
    """Raise LedgerDamaged if a run has finished rounds but no model: it cannot be resumed."""
    finished = run.rounds or (run.result is not None and run.result.rounds > run.manifest.before)
    if finished and not (run.path / MODEL).exists():
        raise LedgerDamaged(f"the run at {run.path} has finished rounds and no {MODEL}: restore it, or start a new run")


def check_last(run: StoredRun) -> None:
    """Raise LedgerDamaged if the model is not the one after the last recorded round."""
    if run.rounds and run.rounds[-1] != run.last and (run.path / MODEL).exists():
        raise LedgerDamaged(f"the {MODEL} of the run at {run.path} is not the one after its last round: restore it")
