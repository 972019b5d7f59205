"""The privacy ledger of a run: one charge a round, on the disk before anything that costs privacy is asked for.

Every line is chained to the one before it: whatever was altered, moved or cut shows, and then nothing goes on.  One
thing cannot show in the file alone: that its last lines are missing altogether.  Whoever kept an earlier `head`
notices that as well: every open `Ledger` does, and whoever passes one to `verify`.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from dordis.errors import BudgetExceeded, InputError, LedgerDamaged
from dordis.federation.account import Account, Budget, Round
from dordis.federation.beacon import check_run_id
from dordis.federation.charges import Charge, OwnersCount, fact_of
from dordis.federation.durable import FileLines, LockedFile, create
from dordis.federation.lines import (
    FORMAT_1,
    Completed,
    Counted,
    Entry,
    Opened,
    Refused,
    Reserved,
    Succeeded,
    entry_of,
    line_of,
)
from dordis.federation.manifest import Manifest
from dordis.federation.stated import StatedEpsilon, stated_epsilon
from dordis.protocols.costs import RoundCost
from dordis.protocols.distributed_noise import ChunkOutput
from dordis.protocols.parameters import RUN_BYTES

__all__ = ["Budget", "Charge", "Ledger", "Summary", "verify"]


class Ledger:
    """Charge the rounds of a run: `reserve` before the first unmask request leaves, then `complete`.

    A round that ends without an output needs no call: it stays charged in full.  So does one that another process, or
    this one before a restart, has reserved: nobody knows what it sent.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger.create(Path(folder) / "ledger.jsonl", bytes(32), Budget(epsilon=6.0, delta=1e-5))
    ...     ledger.summary().epsilon
    0.0
    """

    def __init__(self, path: Path, run: bytes | None = None) -> None:
        self._lines, self._run, self._book = FileLines(path), run, _Book()
        with self._locked():
            check_format(self._book.format)

    @classmethod
    def create(cls, path: Path, run: bytes, budget: Budget) -> "Ledger":
        """Begin the ledger of a run; `run` is the hash of its manifest."""
        try:
            create(path, _first_line(run, budget))
        except FileExistsError:
            raise InputError(f"there is a ledger already at {path}: open it, or give the run another place") from None
        return cls.open(path, run)

    @classmethod
    def open(cls, path: Path, run: bytes | None = None) -> "Ledger":
        """Go on with a ledger; if anything in it is not as it was written, raise `LedgerDamaged`."""
        return cls(path, run)

    @classmethod
    def succeed(cls, earlier: "Ledger", path: Path, run: bytes, budget: Budget) -> "Ledger":
        """Begin the ledger of a run with all lines of an earlier one, which is closed by that."""
        check_run_id(run)
        epsilon = None if budget.epsilon is None else float(budget.epsilon)
        with earlier._locked() as (_, file):
            earlier._record(file, Succeeded(earlier._book.head, run.hex(), float(budget.delta), epsilon))
            create(path, file.read())
        return cls.open(path, run)

    @property
    def run(self) -> bytes:
        """Return the id of the run, or what stands for it."""
        with self._locked() as (account, _):
            return account.run

    def check_budget(self, charge: Charge) -> None:
        """Raise `BudgetExceeded` if the round, at its reserved noise, takes one of its clients beyond the budget.

        One that is charged already is within it.
        """
        with self._locked() as (account, _):
            known = account.rounds.get(charge.index)
            if known is None or known.charge != charge:
                account.check_budget(charge)

    def count(self, index: int, clients: Iterable[int], cost: RoundCost) -> None:
        """Remember what owners may count, durably when this returns; the first request for an upload may leave then."""
        told = None if cost.theta_squared == math.inf else cost.theta_squared
        count = OwnersCount(tuple(sorted(clients)), told, cost.distance)
        with self._locked() as (account, file):
            account.check_countable(index, count)
            self._record(file, Counted(self._book.head, index, *astuple(count)))

    def reserve(self, charge: Charge) -> None:
        """Charge a round within the budget, durably when this returns; the first unmask request may leave then.

        A round that goes on after a restart, charged the same before, is not charged again.
        """
        with self._locked() as (account, file):
            known = account.rounds.get(charge.index)
            if known is not None and known.charge == charge:
                return
            account.check_reservable(charge)
            account.check_budget(charge)
            self._record(file, Reserved(self._book.head, charge))

    def refuse(self, charge: Charge) -> None:
        """Record that the budget refused a round: the run ended by its own rule."""
        with self._locked() as (account, file):
            account.check_refusable(charge)
            self._record(file, Refused(self._book.head, charge))

    def complete(self, index: int, outcomes: Sequence[ChunkOutput]) -> None:
        """Replace what was reserved by what each chunk kept, as the outputs of the round tell; the same again: once."""
        with self._locked() as (account, file):
            known = account.rounds.get(index)
            charge = account.check_open(index).charge if known is None else known.charge
            facts = tuple(fact_of(charge, outcome) for outcome in outcomes)
            if known is not None and known.facts == facts:
                return
            account.check_completable(index, facts)
            self._record(file, Completed(self._book.head, index, facts))

    def round(self, index: int) -> Round | None:
        """Return a round that is in the ledger."""
        with self._locked() as (account, _):
            return account.rounds.get(index)

    def counted(self) -> dict[tuple[bytes, int], OwnersCount]:
        """Return what owners may have counted in this run and in those before, by run and index."""
        with self._locked() as (account, _):
            return account.owners_counts()

    def last_index(self) -> int:
        """Return the largest index that was ever used, or -1."""
        with self._locked() as (account, _):
            return max((*account.counted, *account.rounds), default=-1)

    def summary(self) -> "Summary":
        """Return what the run has cost so far."""
        with self._locked() as (account, _):
            return summary_of(account, self._book.heads)

    def spent(self) -> tuple[float, str]:
        """Return epsilon of the client that has spent most, and the hash of the last line."""
        with self._locked() as (account, _):
            worst = account.worst(account.clients())
            return 0.0 if worst is None else account.epsilon(worst), self._book.head

    def stated(self, manifest: Manifest, recorded: int) -> StatedEpsilon:
        """Return the stated epsilon of the run, of which `recorded` rounds are finished."""
        with self._locked() as (account, _):
            return stated_epsilon(account, manifest, recorded)

    @contextmanager
    def _locked(self) -> Iterator[tuple[Account, LockedFile]]:
        """Give what the ledger says, and its lines, to nobody else at the same time."""
        try:
            with self._lines.locked() as file:
                account = self._book.read(file.read())
                check_run(account, self._run)
                yield account, file
        except FileNotFoundError as error:
            raise LedgerDamaged(
                f"there is no ledger at {error.filename}: a run does not go on without its own"
            ) from None

    def _record(self, file: LockedFile, entry: Entry) -> None:
        file.append(line_of(entry))
        self._book.read(file.read())


class _Book:
    """What the lines read so far say; a line that says what cannot be raises `LedgerDamaged`, again and again."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.format = ""
        self._account: Account | None = None
        self._size, self._hash = 0, hashlib.sha256()

    @property
    def head(self) -> str:
        """Return the hash of the last line."""
        return self.heads[-1]

    def read(self, data: bytes) -> Account:
        """Read what was added since, and make sure that what was read before is still the same."""
        if hashlib.sha256(data[: self._size]).digest() != self._hash.digest():
            raise LedgerDamaged("the privacy ledger lost or changed lines since it was last read: restore it")
        for line in data[self._size :].splitlines(keepends=True):
            check_whole(line, len(self.heads) + 1, self._size)
            self._apply(entry_of(line, len(self.heads) + 1), len(self.heads) + 1)
            self.heads.append(hashlib.sha256(line).hexdigest())
            self._size += len(line)
            self._hash.update(line)
        if self._account is None:
            raise LedgerDamaged("the privacy ledger is empty: restore it")
        return self._account

    def _apply(self, entry: Entry, number: int) -> None:
        """Check a line against those before it, and count what it says."""
        account = self._account
        if isinstance(entry, Opened):
            if account is not None:
                raise LedgerDamaged("begins another ledger", number)
            self._account, self.format = _opened(entry, number), entry.format
            return
        if account is None:
            raise LedgerDamaged("is not the one that a ledger begins with", number)
        check_chained(entry, self.head, number)
        try:
            match entry:
                case Counted():
                    account.count(entry.index, OwnersCount(entry.clients, entry.cost, entry.distance))
                case Reserved():
                    account.reserve(entry.charge)
                case Refused():
                    account.refuse(entry.charge)
                case Completed():
                    account.complete(entry.index, entry.facts)
                case Succeeded():
                    self._account = account.succeeded(_run_id(entry.run), Budget(entry.budget, entry.delta))
        except InputError as error:
            raise LedgerDamaged(f"says what cannot be: {error}", number) from None


@dataclass(frozen=True)
class Summary:
    """The contents of a ledger, recomputed: the epsilon spent by every client at `delta`, and `worst`, the largest.

    `head` is the hash of the last line: whoever keeps it can tell later that no line is missing.
    """

    run: str
    head: str
    lines: int
    reserved: int
    """Rounds that are charged in full: under way, or failed after an unmask request left."""
    completed: int
    delta: float
    budget: float | None
    epsilon: float
    """The epsilon spent by the client `worst`; `stated` is the epsilon to publish."""
    stated: StatedEpsilon
    worst: int | None
    clients: dict[int, float]
    mechanisms: tuple[str, ...]
    """Whose noise was charged."""
    gaussian: bool = True
    """Whether all of it was charged as Gaussian noise; if not, Renyi divergences were added up."""
    predecessors: tuple[str, ...] = ()
    """The runs before, the latest first, whose rounds are counted here too."""
    failure: float = 0.0
    """Of delta, what the graphs and lots of the rounds take: the chance that one of them failed, at most."""

    def check_budget(self) -> None:
        """Raise `BudgetExceeded` if a client has spent more than the budget."""
        if self.worst is not None and self.budget is not None and self.epsilon > self.budget:
            raise BudgetExceeded(self.worst, self.epsilon, self.budget)


def verify(path: Path, *, run: bytes | None = None, head: str | None = None) -> Summary:
    """Read a ledger, check every line against those before it, and recompute every charge and epsilon.

    Given the `run`, the ledger must be its own; given a `head` of an earlier day, the line must still be there.
    """
    account, heads = read(path, run)
    if head is not None and head not in heads:
        raise LedgerDamaged(f"the line with the hash {head} is missing from the privacy ledger")
    return summary_of(account, heads)


def read(path: Path, run: bytes | None = None) -> tuple[Account, Sequence[str]]:
    """Read a ledger, check every line against those before it; return what it says, and the hashes of its lines."""
    try:
        data = FileLines(path).read()
    except FileNotFoundError:
        raise LedgerDamaged(f"there is no ledger at {path}: restore it") from None
    except OSError as error:
        raise LedgerDamaged(f"cannot read the ledger {path}: {error.strerror}; restore it") from None
    book = _Book()
    account = book.read(data)
    if account.predecessor is not None and account.predecessor.run == run and not account.rounds:
        account = account.predecessor  # the last line is for the successor, which goes on elsewhere
    check_run(account, run)
    return account, book.heads


def check_whole(line: bytes, number: int, before: int) -> None:
    """The line has its end: one that a crash cut short has not."""
    if not line.endswith(b"\n"):
        raise LedgerDamaged(
            "has no end, as if the machine had stopped while it was written. Nothing is sent before its line is whole: "
            f"if that is what happened, keep a copy, cut the file to its first {before} bytes (truncate -s {before}) "
            "and go on; if not, restore the file",
            number,
        )


def check_chained(entry: Entry, head: str, number: int) -> None:
    """The line follows the one before it."""
    if entry.previous != head:
        raise LedgerDamaged("does not follow the line before it: one is missing, or was moved or altered", number)


def check_run(account: Account, run: bytes | None) -> None:
    """The ledger is that of the run, if one is given."""
    if run is not None and account.predecessor is not None and account.predecessor.run == run:
        raise LedgerDamaged(
            f"this run was succeeded by the run {account.run.hex()[:16]}: go on with that one; if the machine stopped "
            "before that run had its ledger, copy this one into its directory"
        )
    if run is not None and account.run != run:
        raise LedgerDamaged(f"this privacy ledger is of another run, {account.run.hex()}")


def check_format(written: str) -> None:
    """The ledger counts as this version does: what an earlier one counted otherwise is verified, and not added to."""
    if written == FORMAT_1:
        raise InputError(
            f"this ledger has the format '{FORMAT_1}', which counts more for the same noise: `dordis ledger verify` "
            "still verifies it, and a run does not go on with it; start a new run"
        )


def _first_line(run: bytes, budget: Budget) -> bytes:
    check_run_id(run)
    return line_of(Opened(run.hex(), float(budget.delta), None if budget.epsilon is None else float(budget.epsilon)))


def _opened(entry: Opened, number: int) -> Account:
    try:
        return Account(_run_id(entry.previous), Budget(entry.budget, entry.delta), renyi=entry.format == FORMAT_1)
    except ValueError as error:
        raise LedgerDamaged(f"says what cannot be: {error}", number) from None


def _run_id(text: str) -> bytes:
    with suppress(ValueError):
        if len(run := bytes.fromhex(text)) == RUN_BYTES and run.hex() == text:
            return run
    raise InputError("a run id is 64 lower-case hex digits")


def summary_of(account: Account, heads: Sequence[str], stated: StatedEpsilon | None = None) -> Summary:
    """Add up the costs of an account; if `stated` is None, the ledger alone decides the stated epsilon."""
    spent = {u: account.epsilon(u) for u in account.clients()}
    worst = account.worst(spent)
    rounds = [entry for one in account.line() for entry in one.rounds.values()]
    states, charged = Counter(entry.state for entry in rounds), [entry.charge for entry in rounds]
    return Summary(
        run=account.run.hex(),
        head=heads[-1],
        lines=len(heads),
        reserved=states["reserved"],
        completed=states["completed"],
        delta=account.budget.delta,
        budget=account.budget.epsilon,
        epsilon=0.0 if worst is None else spent[worst],
        stated=stated_epsilon(account) if stated is None else stated,
        worst=worst,
        clients=spent,
        mechanisms=tuple(sorted({release.under for charge in charged for release in charge.releases})),
        gaussian=account.is_gaussian,
        failure=float(account.failure()),
        predecessors=tuple(one.run.hex() for one in account.line())[1:],
    )
