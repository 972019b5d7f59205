"""Whether the files of a run bear each other out: its ledger, its receipts, the records of its rounds and its model.

A ledger that was shortened, or altered and hashed again, is sound by itself.  The receipts name its head after every
finished round, and the records and the model name the rounds: together they show what is missing.  Whoever rewrites
all files consistently is seen only by those who kept a head elsewhere: the clients, in their receipts.
"""

import math
from collections.abc import Collection, Mapping

import msgspec

from dordis.errors import LedgerDamaged
from dordis.federation import ledger
from dordis.federation.account import Account
from dordis.federation.ledger import Summary
from dordis.federation.manifest import Predecessor
from dordis.federation.receipt import Receipt
from dordis.federation.records import LEDGER, MODEL, RECEIPTS, RESULT, ROUNDS, RoundRecord, StoredRun
from dordis.federation.stated import StatedEpsilon, check_budget_stated, stated_epsilon

_CLOSE = 1e-6


def check_evidence(run: StoredRun) -> Summary | None:
    """Return what the ledger of a run says, if nothing in its directory speaks against it.

    None where nothing is proved.  Otherwise no epsilon can be stated, and `LedgerDamaged` says why.
    """
    check_order(run)
    if run.result is not None:  # of a run that is under way the model may be older than the lines, which are read later
        check_last(run)
    if not run.manifest.trust.proves:
        return None
    account, heads = ledger.read(run.path / LEDGER, run.id)
    check_predecessor(run.manifest.predecessor, account, heads)
    check_budget_stated(account, run.manifest)
    receipts = read_receipts(run)
    check_receipts(receipts, account, heads)
    check_rounds(run.rounds, receipts, account)
    check_course(run.rounds, account)
    stated = stated_epsilon(account, run.manifest, run.evident)
    check_recorded(run, stated)
    return ledger.summary_of(account, heads, stated)


def check_predecessor(named: Predecessor | None, account: Account, heads: Collection[str]) -> None:
    """The ledger goes on from that of the run that the manifest names, if it names one."""
    before = "" if account.predecessor is None else account.predecessor.run.hex()
    if before != ("" if named is None else named.run) or (named is not None and named.head not in heads):
        raise LedgerDamaged(
            "the privacy ledger lacks the rounds of the run before, which its clients paid for: restore it"
        )


def read_receipts(run: StoredRun) -> dict[int, Receipt]:
    """Return the receipts of a run by the index of their round; one of another run, or altered, is damage."""
    receipts = {}
    for path in sorted((run.path / RECEIPTS).glob("*.json")):
        try:
            receipt = msgspec.json.decode(path.read_bytes(), type=Receipt)
        except msgspec.DecodeError:
            raise LedgerDamaged(f"the receipt {path.name} is not what dordis wrote: restore it") from None
        check_receipt(receipt, run, path.name)
        receipts[receipt.index] = receipt
    return receipts


def check_receipt(receipt: Receipt, run: StoredRun, name: str) -> None:
    """The receipt is of this run, and of the round that its file is named after."""
    if receipt.run != run.id.hex() or name != receipt.file_name:
        raise LedgerDamaged(f"the receipt {name} is of another run or round: restore the right one")


def check_receipts(receipts: Mapping[int, Receipt], account: Account, heads: Collection[str]) -> None:
    """Every receipt is borne out by the ledger: its head is there, and its round was charged as it says."""
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
    """Every finished round has its receipt and its completed charge, and they are about the same clients."""
    for record in rounds:
        known = account.rounds.get(record.index)
        if known is None or known.state != "completed":
            raise LedgerDamaged(f"round {record.number} is recorded and not in the privacy ledger: restore the ledger")
        if record.index not in receipts:
            raise LedgerDamaged(f"the receipt of round {record.number} is missing: restore the directory {RECEIPTS}")
        if not receipts[record.index].is_of(record):
            raise LedgerDamaged(f"round {record.number} is recorded otherwise than its receipt says")


def check_course(rounds: Collection[RoundRecord], account: Account) -> None:
    """The epsilon recorded after each round equals the one recomputed from the ledger."""
    for record in rounds:
        known = account.epsilon_after(record.index)
        if known is None or record.epsilon is None or not math.isclose(known, record.epsilon, rel_tol=_CLOSE):
            raise LedgerDamaged(
                f"round {record.number}: the epsilon in {ROUNDS} is not the one that the privacy ledger gives; restore "
                "both from a backup"
            )


def check_recorded(run: StoredRun, stated: StatedEpsilon) -> None:
    """Spent and stated epsilon in the result are not above those from the ledger."""
    if run.result is None:
        return
    for said, known in ((run.result.spent, stated.spent), (run.result.epsilon, stated.epsilon)):
        if said is not None and known < said * (1 - _CLOSE):
            raise LedgerDamaged(
                f"{RESULT} has epsilon = {said:.4g}, and the privacy ledger gives {known:.4g}: lines are missing from "
                "the ledger; restore it from a backup"
            )


def check_model(run: StoredRun) -> None:
    """A run that has finished rounds has the model after the last of them: without it nothing goes on."""
    finished = run.rounds or (run.result is not None and run.result.rounds > run.manifest.before)
    if finished and not (run.path / MODEL).exists():
        raise LedgerDamaged(f"the run at {run.path} has finished rounds and no {MODEL}: restore it, or start a new run")


def check_last(run: StoredRun) -> None:
    """The model, if it is there, is that after the last round, so that no round is run again."""
    if run.rounds and run.rounds[-1] != run.last and (run.path / MODEL).exists():
        raise LedgerDamaged(f"the {MODEL} of the run at {run.path} is not that after its last round: restore it")
