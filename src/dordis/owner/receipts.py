"""The receipts that a client keeps of its rounds, and the comparison of a server's history with them.

A client notes by itself which parameters it took part under and which sums reached it; no server can prevent that.  A
server shows its history at log-in and before every round: the hash of every receipt, and the receipts of the client's
own rounds whole.  A history that contradicts the notes, or what was shown before, is refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dordis.durable_files import PRIVATE, AppendOnlyFile
from dordis.errors import HistoryContradicted, InputError
from dordis.ledger.receipt import FIRST, Receipt
from dordis.ledger.verification import verify_receipt
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters


class Attended(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The client counted a participation in a round with these parameters, by their hash."""

    index: int
    parameters: str


class Delivered(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The whole sum of a round reached the client; |U3| of every chunk, as the server said."""

    index: int
    survivors: tuple[int, ...]


class Shown(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """An entry of a server's history: the hash of a receipt, and the receipt itself if the client was in the round."""

    index: int
    digest: str
    receipt: Receipt | None = None


History = Mapping[int, Shown]
"""Entries by the index of their round."""


@dataclass
class KeptRun:
    """Receipts that a client stored of one run, by the index of the round."""

    attended: dict[int, str] = field(default_factory=dict)
    delivered: dict[int, tuple[int, ...]] = field(default_factory=dict)
    shown: dict[int, Shown] = field(default_factory=dict)

    @classmethod
    def from_lines(cls, data: bytes, path: Path) -> "KeptRun":
        """Read the lines of a file; raise InputError if one is damaged.  An incomplete last line is left out."""
        kept = cls()
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            try:
                note = msgspec.json.decode(line, type=Attended | Delivered | Shown)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise InputError(f"{path} is not what dordis wrote: restore it from a backup") from None
            match note:
                case Attended():
                    kept.attended[note.index] = note.parameters
                case Delivered():
                    kept.delivered[note.index] = note.survivors
                case Shown():
                    kept.shown[note.index] = note
        return kept


@dataclass(frozen=True)
class KeptReceipts:
    """The directory `receipts` of a client's state: one file for every run, to which lines are only added."""

    path: Path

    def file(self, run: bytes) -> Path:
        """Return the file of a run."""
        return self.path / f"{run.hex()}.jsonl"

    def read(self, run: bytes) -> KeptRun:
        """Return the stored receipts of a run; empty if the client was never in it."""
        return read_kept(self.file(run)) if self.file(run).exists() else KeptRun()

    def note_attended(self, parameters: Parameters) -> None:
        """Note a participation durably, before the upload; once for each round."""
        if parameters.index not in self.read(parameters.run).attended:
            self._add(parameters.run, [Attended(parameters.index, parameters.digest.hex())])

    def note_delivered(self, parameters: Parameters, survivors: Sequence[int]) -> None:
        """Note durably that the whole sum of a round came."""
        self._add(parameters.run, [Delivered(parameters.index, tuple(survivors))])

    def compare(self, run: bytes, shown: Sequence[Shown], keys: Mapping[ClientId, bytes], *, complete: bool) -> None:
        """Keep the new entries of a server's history; raise HistoryContradicted if it does not fit what was kept.

        A `complete` history begins with the first round of the run, another one after the last entry kept.
        """
        kept = self.read(run)
        check_history(kept, shown, complete=complete, where=self.file(run))
        fresh = [entry for entry in shown if entry.index not in kept.shown]
        for entry in fresh:
            if entry.receipt is not None:
                check_shown_receipt(entry, run)
                verify_receipt(entry.receipt, keys)
        if fresh:
            self._add(run, fresh)

    def _add(self, run: bytes, lines: Iterable[Attended | Delivered | Shown]) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with AppendOnlyFile(self.file(run), PRIVATE).locked() as file:
            data = file.read()
            file.truncate(data.rfind(b"\n") + 1)
            file.append(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def read_kept(path: Path) -> KeptRun:
    """Read the file of a run."""
    try:
        return KeptRun.from_lines(path.read_bytes(), path)
    except OSError as error:
        raise InputError(f"cannot read the kept receipts {path}: {error.strerror}") from None


def check_history(kept: KeptRun, shown: Sequence[Shown], *, complete: bool, where: Path) -> None:
    """A server's history fits what a client kept; raise HistoryContradicted, which names the round and the file."""
    try:
        indices = [entry.index for entry in shown]
        if indices != sorted(set(indices)):
            raise HistoryContradicted("its rounds are not in order")
        history = {entry.index: entry for entry in shown}
        check_nothing_rewritten(kept, history, complete=complete)
        everything = history | kept.shown  # receipts that were kept are shown by their hash
        check_links(everything)
        check_attended(kept, everything)
        check_delivered(kept, everything)
    except HistoryContradicted as error:
        raise HistoryContradicted(
            f"the server's history of this run contradicts what this client kept in {where}: {error}. Do not go on "
            "with this server before its operator has explained it; show the file to the other members"
        ) from None


def check_nothing_rewritten(kept: KeptRun, history: History, *, complete: bool) -> None:
    """Receipts that were shown before are unaltered, and in a complete history all of them are still there."""
    for index, before in kept.shown.items():
        now = history.get(index)
        if complete if now is None else now.digest != before.digest:
            what = "is missing" if now is None else "was replaced"
            raise HistoryContradicted(f"the receipt of round index {index}, which it showed before, {what}")


def check_links(history: History) -> None:
    """Every receipt that is shown whole has its hash, and names the one before it."""
    previous = FIRST
    for index, entry in sorted(history.items()):
        if entry.receipt is not None and (entry.receipt.digest, entry.receipt.previous) != (entry.digest, previous):
            raise HistoryContradicted(f"the receipt of round index {index} does not follow the one before it")
        previous = entry.digest


def check_attended(kept: KeptRun, history: History) -> None:
    """Rounds of this client are listed with it, its parameters and the survivors that it was told."""
    for index, parameters in kept.attended.items():
        entry = history.get(index)
        if entry is None:  # the attempt failed, or is not finished yet
            continue
        if entry.receipt is None:
            raise HistoryContradicted(f"it says that this client was not in round index {index}")
        if entry.receipt.parameters != parameters:
            raise HistoryContradicted(f"round index {index} has other parameters than this client agreed to")
        counted = kept.delivered.get(index)
        if counted is not None and counted != tuple(map(len, entry.receipt.survivors)):
            raise HistoryContradicted(f"round index {index} has other numbers of survivors than this client was told")


def check_delivered(kept: KeptRun, history: History) -> None:
    """A round whose sum reached this client has a receipt, once a later one has."""
    for index in kept.delivered:
        if index not in history and any(later > index for later in history):
            raise HistoryContradicted(f"round index {index}, whose sum reached this client, is missing")


def check_shown_receipt(entry: Shown, run: bytes) -> None:
    """A receipt is of this run and of the index under which it is shown."""
    if entry.receipt is not None and (entry.receipt.run, entry.receipt.index) != (run.hex(), entry.index):
        raise HistoryContradicted(f"the receipt shown for round index {entry.index} is of another run or round")
