"""The privacy ledger of a run: the charge of a round is on disk before the server asks for a disclosure.

Every line states the hash of the line before it, so that altered, moved or missing lines raise `LedgerDamaged`.  The
file alone cannot show that its last lines are missing: keep a `head`, the hash of the last line at some time, and pass
it to `verify_ledger`.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path

import msgspec

from dordis.durable_files import AppendOnlyFile, LockedFile, write_new
from dordis.errors import BudgetExceeded, InputError, LedgerDamaged
from dordis.ledger.client_spending import Account, Budget
from dordis.ledger.entries import (
    Completed,
    Counted,
    Entry,
    LedgerRound,
    Opened,
    Refused,
    Reserved,
    RunCharge,
    RunCharged,
    Succeeded,
    decode_entry,
    encode_entry,
    outcome_from_output,
)
from dordis.ledger.round_charge import Charge, OwnerCharge
from dordis.ledger.stated_epsilon import LedgerSummary, StatedEpsilon, stated_epsilon, summarise
from dordis.privacy.accounting import PAPER
from dordis.protocols.costs import RoundCost
from dordis.protocols.noise_addition_and_removal import ChunkOutput
from dordis.protocols.parameters import RUN_BYTES
from dordis.records.manifest import Manifest
from dordis.selection.beacon import check_run_id

__all__ = ["Budget", "Charge", "Ledger", "LedgerSummary", "verify_ledger"]


_CHANGED = "the privacy ledger lost or changed lines since it was last read: restore it"


class Ledger:
    """The ledger of a run: `reserve` charges a round before its first disclosure, at the least possible noise.

    When the round has an output, `complete` replaces this charge by one for the actual noise.  A round that never has
    an output, for example because the server stopped, stays charged as it was reserved.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger.create(Path(folder) / "ledger.jsonl", bytes(32), Budget(epsilon=6.0, delta=1e-5))
    ...     ledger.summary().epsilon
    0.0
    """

    def __init__(self, path: Path, run: bytes | None = None) -> None:
        self.path, self._file, self._run, self._reader = path, AppendOnlyFile(path), run, _LedgerReader()
        with self._locked():  # raises if the ledger is damaged
            pass

    @classmethod
    def create(cls, path: Path, run: bytes, budget: Budget) -> "Ledger":
        """Create the ledger of a run, whose id `run` is the hash of its manifest; raise InputError if `path` exists."""
        try:
            write_new(path, _first_line(run, budget))
        except FileExistsError:
            raise InputError(f"there is a ledger already at {path}: open it, or choose another path") from None
        return cls.open(path, run)

    @classmethod
    def open(cls, path: Path, run: bytes | None = None) -> "Ledger":
        """Open a ledger to add lines; raise `LedgerDamaged` if a line was altered or it is not the ledger of `run`."""
        return cls(path, run)

    @classmethod
    def succeed(cls, earlier: "Ledger", path: Path, run: bytes, budget: Budget) -> "Ledger":
        """End the earlier ledger with a line that names the successor run; create the successor's ledger as a copy.

        After that line the earlier ledger takes no more lines; the copy takes the lines of the successor.
        """
        check_run_id(run)
        check_client_unit(budget)
        epsilon = None if budget.epsilon is None else float(budget.epsilon)
        with earlier._locked() as (account, file):
            account.start_successor(run, budget)  # raises before anything is written
            earlier._record(file, Succeeded(earlier._reader.head, run.hex(), float(budget.delta), epsilon))
            write_new(path, file.read())
        return cls.open(path, run)

    @property
    def run(self) -> bytes:
        """Return the id of the run."""
        with self._locked() as (account, _):
            return account.run

    def check_budget(self, charge: Charge) -> None:
        """Raise `BudgetExceeded` if a round would take one of its clients beyond the budget.

        The cost is computed for the least noise that may be left: after the known number of dropouts of a chunk, or
        else after up to T.  A round that the ledger has charged already, with the same charge, is accepted.
        """
        with self._locked() as (account, _):
            known = account.rounds.get(charge.index)
            if known is None or known.charge != charge:
                account.check_budget(charge)

    def record_owner_charges(self, index: int, clients: Iterable[int], cost: RoundCost) -> None:
        """Record durably the cost that the owners of these clients may count, before their uploads are requested.

        In assisted rounds this method is called for each contribution, before the server acknowledges it.  To be fast,
        it verifies only new lines and the line before them.  `reserve` verifies all lines before the disclosure.
        """
        known = None if cost.theta_squared == math.inf else cost.theta_squared
        charge = OwnerCharge(tuple(sorted(clients)), known, cost.distance)
        with self._locked(whole=False) as (account, file):
            account.check_countable(index, charge)
            self._record(file, Counted(self._reader.head, index, *astuple(charge)))

    def reserve(self, charge: Charge) -> None:
        """Charge a round durably, before its first disclosure; raise BudgetExceeded as `check_budget` does.

        A resumed round with the same charge is not charged again.
        """
        with self._locked() as (account, file):
            known = account.rounds.get(charge.index)
            if known is not None and known.charge == charge:
                return
            account.check_reservable(charge)
            account.check_budget(charge)
            self._record(file, Reserved(self._reader.head, charge))

    def refuse(self, charge: Charge) -> None:
        """Record durably that a round was refused because it would exceed the budget; the refusal ends the run."""
        with self._locked() as (account, file):
            account.check_refusable(charge)
            self._record(file, Refused(self._reader.head, charge))

    def complete(self, index: int, outputs: Sequence[ChunkOutput]) -> None:
        """Replace the reservation of a round by the outcomes of its chunks; to repeat the same call has no effect."""
        with self._locked() as (account, file):
            known = account.rounds.get(index)
            charge = account.check_open(index).charge if known is None else known.charge
            outcomes = tuple(outcome_from_output(charge, output) for output in outputs)
            if known is not None and known.outcomes == outcomes:
                return
            account.check_completable(index, outcomes)
            self._record(file, Completed(self._reader.head, index, outcomes))

    def charge_run(self, run: bytes, charge: RunCharge) -> None:
        """Charge another run over the same data to every client; raise `BudgetExceeded` if a client cannot afford it.

        The run is charged as a whole.  A later, smaller charge of the same run replaces the earlier one.
        """
        with self._locked() as (account, file):
            if account.runs.get(run) == charge:
                return
            account.check_run_chargeable(run, charge)
            head = self._reader.head
            self._record(file, RunCharged(head, run.hex(), charge.label, charge.theta_squared, charge.failure))

    def check_run(self, charge: RunCharge) -> None:
        """Raise `BudgetExceeded` if a client cannot afford another run at this charge."""
        with self._locked() as (account, _):
            account.check_run_chargeable(b"", charge)

    def round(self, index: int) -> LedgerRound | None:
        """Return the round with this index; None if the ledger has none."""
        with self._locked() as (account, _):
            return account.rounds.get(index)

    def owner_charges(self) -> dict[tuple[bytes, int], OwnerCharge]:
        """Return the costs that owners may have counted in this run and its predecessors, by run id and round index."""
        with self._locked() as (account, _):
            return account.owner_charges()

    def last_index(self) -> int:
        """Return the largest round index in the ledger; -1 if there is none."""
        with self._locked() as (account, _):
            return max(account.used_indices, default=-1)

    def summary(self) -> LedgerSummary:
        """Return the summary of the ledger, with the epsilon spent by every client."""
        with self._locked() as (account, _):
            return summarise(account, self._reader.heads)

    def spent(self) -> tuple[float, str]:
        """Return the largest epsilon spent by a client, and the hash of the last line."""
        with self._locked() as (account, _):
            return account.epsilon_with_run(), self._reader.head

    def stated(self, manifest: Manifest, recorded: int) -> StatedEpsilon:
        """Return the stated epsilon; `recorded` is the number of finished rounds on record, predecessors' included."""
        with self._locked() as (account, _):
            return stated_epsilon(account, manifest, recorded)

    @contextmanager
    def _locked(self, *, whole: bool = True) -> Iterator[tuple[Account, LockedFile]]:
        """Lock the file; yield the account that follows from its lines, and the file.

        If `whole`, all lines are verified again; otherwise only new lines and the line before them.
        """
        try:
            with self._file.locked() as file:
                account = self._reader.read(file.read()) if whole else self._reader.read_new(file)
                check_run(account, self._run)
                yield account, file
        except FileNotFoundError as error:
            raise LedgerDamaged(
                f"there is no ledger at {error.filename}: restore it; a run does not continue without its ledger"
            ) from None

    def _record(self, file: LockedFile, entry: Entry) -> None:
        file.append(encode_entry(entry))
        self._reader.read_new(file)


class _LedgerReader:
    """Reads the lines of a ledger into an account; once a line is invalid, every read raises `LedgerDamaged`."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self._account: Account | None = None
        self._size, self._last, self._hash = 0, 0, hashlib.sha256()

    @property
    def head(self) -> str:
        """Return the hash of the last line."""
        return self.heads[-1]

    def read(self, data: bytes) -> Account:
        """Apply the lines of `data` added since the last call, and return the account; raise if old lines changed."""
        if hashlib.sha256(data[: self._size]).digest() != self._hash.digest():
            raise LedgerDamaged(_CHANGED)
        return self._read_lines(data[self._size :])

    def read_new(self, file: LockedFile) -> Account:
        """Apply the lines added since the last call, and return the account; of the lines before, verify only the last.

        The last line commits to all lines before it, because every line states the hash of the line before.
        """
        data = file.read(self._size - self._last)
        if self.heads and hashlib.sha256(data[: self._last]).hexdigest() != self.head:
            raise LedgerDamaged(_CHANGED)
        return self._read_lines(data[self._last :])

    def _read_lines(self, data: bytes) -> Account:
        """Verify `data`, the new lines of the ledger, apply them to the account, and return the account."""
        for line in data.splitlines(keepends=True):
            check_whole(line, len(self.heads) + 1, self._size)
            self._apply(decode_entry(line, len(self.heads) + 1), len(self.heads) + 1)
            self.heads.append(hashlib.sha256(line).hexdigest())
            self._size, self._last = self._size + len(line), len(line)
            self._hash.update(line)
        if self._account is None:
            raise LedgerDamaged("the privacy ledger is empty: restore it")
        return self._account

    def _apply(self, entry: Entry, number: int) -> None:
        """Check an entry against earlier entries, and apply it to the account."""
        account = self._account
        if isinstance(entry, Opened):
            if account is not None:
                raise LedgerDamaged("begins another ledger", number)
            self._account = _open_account(entry, number)
            return
        if account is None:
            raise LedgerDamaged("is not the first line of a ledger", number)
        check_chained(entry, self.head, number)
        try:
            match entry:
                case Counted():
                    account.count(entry.index, OwnerCharge(entry.clients, entry.cost, entry.distance))
                case Reserved():
                    account.reserve(entry.charge)
                case Refused():
                    account.refuse(entry.charge)
                case Completed():
                    account.complete(entry.index, entry.outcomes)
                case RunCharged():
                    account.charge_run(_run_id(entry.run), RunCharge(entry.label, entry.theta_squared, entry.failure))
                case Succeeded():
                    self._account = account.start_successor(_run_id(entry.run), Budget(entry.budget, entry.delta))
        except (InputError, BudgetExceeded) as error:
            raise LedgerDamaged(f"is invalid: {error}", number) from None


def verify_ledger(path: Path, *, run: bytes | None = None, head: str | None = None) -> LedgerSummary:
    """Return the summary of a ledger, with every line verified and every charge and epsilon recomputed.

    Raise `LedgerDamaged` if a line is invalid, if the ledger is not of the given `run`, or if no line hashes to `head`.
    """
    account, heads = read_ledger(path, run)
    if head is not None and head not in heads:
        raise LedgerDamaged(f"the line with the hash {head} is missing from the privacy ledger")
    return summarise(account, heads)


def read_ledger(path: Path, run: bytes | None = None) -> tuple[Account, Sequence[str]]:
    """Return a ledger's account and the hashes of its lines; raise LedgerDamaged if it is invalid, or not of `run`."""
    try:
        data = AppendOnlyFile(path).read()
    except FileNotFoundError:
        raise LedgerDamaged(f"there is no ledger at {path}: restore it, or name another file") from None
    except OSError as error:
        raise LedgerDamaged(f"cannot read the ledger {path}: {error.strerror}; restore it") from None
    reader = _LedgerReader()
    account = reader.read(data)
    if account.predecessor is not None and account.predecessor.run == run and not account.rounds:
        account = account.predecessor  # the last line begins the successor, which has its own ledger
    check_run(account, run)
    return account, reader.heads


def check_whole(line: bytes, number: int, before: int) -> None:
    """Raise LedgerDamaged unless line `number` of a ledger, which follows `before` bytes, ends with a newline."""
    if not line.endswith(b"\n"):
        raise LedgerDamaged(
            "has no end, as if the machine had stopped while it was written. Nothing is sent before its line is "
            f"complete: if that happened, keep a copy, cut the file to its first {before} bytes (truncate -s {before}) "
            "and continue; if not, restore the file",
            number,
        )


def check_chained(entry: Entry, head: str, number: int) -> None:
    """Raise LedgerDamaged unless `entry`, line `number`, states `head`, the hash of the line before, as `previous`."""
    if entry.previous != head:
        raise LedgerDamaged("does not follow the line before it: one is missing, or was moved or altered", number)


def check_run(account: Account, run: bytes | None) -> None:
    """Raise LedgerDamaged if a `run` is given, and the ledger is not of this run or is continued by its successor."""
    if run is not None and account.predecessor is not None and account.predecessor.run == run:
        raise LedgerDamaged(
            f"this run was succeeded by the run {account.run.hex()[:16]}: continue that one; if the machine stopped "
            "before that run had its ledger, copy this one into its directory"
        )
    if run is not None and account.run != run:
        raise LedgerDamaged(f"this privacy ledger is of another run, {account.run.hex()}")


def check_client_unit(budget: Budget) -> None:
    """Raise InputError if the unit of privacy is the record: the events are planned for one run, not for successors."""
    if budget.records is not None:
        raise InputError("a run whose unit of privacy is a record has no successor: start a new run")


def _first_line(run: bytes, budget: Budget) -> bytes:
    check_run_id(run)
    epsilon = None if budget.epsilon is None else float(budget.epsilon)
    opened = Opened(run.hex(), float(budget.delta), epsilon, records=budget.records or msgspec.UNSET)
    return encode_entry(msgspec.structs.replace(opened, accounting=PAPER) if budget.paper else opened)


def _open_account(entry: Opened, number: int) -> Account:
    try:
        budget = Budget(entry.budget, entry.delta, entry.records or None, entry.accounting == PAPER)
        return Account(_run_id(entry.previous), budget)
    except ValueError as error:
        raise LedgerDamaged(f"is invalid: {error}", number) from None


def _run_id(text: str) -> bytes:
    with suppress(ValueError):
        if len(run := bytes.fromhex(text)) == RUN_BYTES and run.hex() == text:
            return run
    raise InputError("a run id is 64 lower-case hex digits")
