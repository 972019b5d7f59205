"""The notes and receipts that a client stores about its rounds, and the comparison of a server's history with them.

The client itself notes the parameters of its rounds and the arrival of sums; no server can prevent that.  At log-in and
before every round the server shows its *history* of the run: the hashes of all receipts, and the whole receipts of the
client's own rounds.  The client refuses a history that contradicts its notes or an earlier history.  The entries in
`fresh` are those that the client has not stored yet.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dordis.durable_files import PRIVATE, AppendOnlyFile
from dordis.errors import HistoryContradicted, InputError, explain_os_errors
from dordis.ledger.receipt import FIRST, Receipt
from dordis.ledger.verification import verify_receipt
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters


class Attended(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """A note that the client counted a participation in a round: the round's index, and the hash of its parameters."""

    index: int
    parameters: str
    is_listed: bool = True
    """Whether the parameters list the clients; if not, a contribution may be lost until the server acknowledges it."""


class Acknowledged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A note that the server acknowledged the client's contribution to a round whose parameters list no clients.

    Before that, such a contribution may be lost, and the client missing from the round's survivors.
    """

    index: int


class Delivered(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A note that the whole sum of a round arrived, and the numbers of survivors, by chunk, that the server stated."""

    index: int
    survivors: tuple[int, ...]


class Shown(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """What a server shows a client of one round: the hash of the receipt, and the receipt if the client took part.

    A receipt that the client has stored already may be left out.  All rounds together are the server's *history*.
    """

    index: int
    digest: str
    receipt: Receipt | None = None


Note = Attended | Acknowledged | Delivered | Shown
"""One line of the file in which a client stores its notes about a run and the entries of the server's history."""
History = Mapping[int, Shown]
"""The entries of a server's history by round index."""


@dataclass
class KeptRun:
    """The notes and receipts that a client stored about one run, by round index.

    `attended` has the parameter hashes of rounds in which the client took part, `delivered` the number of survivors of
    each chunk for rounds whose sum arrived, and `shown` the receipts, or their hashes, that the server has shown.
    """

    attended: dict[int, str] = field(default_factory=dict)
    unlisted: set[int] = field(default_factory=set)
    """Attended rounds whose parameters list no clients, and to which no contribution was acknowledged yet."""
    acknowledged: set[int] = field(default_factory=set)
    """Attended rounds whose parameters list no clients, and for which the server acknowledged the contribution."""
    delivered: dict[int, tuple[int, ...]] = field(default_factory=dict)
    shown: dict[int, Shown] = field(default_factory=dict)

    def with_lines(self, data: bytes, path: Path) -> "KeptRun":
        """Return a copy with the notes in `data`, new lines of the file `path`; raise InputError if one is damaged."""
        kept = KeptRun(
            dict(self.attended), set(self.unlisted), set(self.acknowledged), dict(self.delivered), dict(self.shown)
        )
        for line in data.splitlines():
            try:
                note = msgspec.json.decode(line, type=Note)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise InputError(f"{path} is not what dordis wrote: restore it from a backup") from None
            match note:
                case Attended():
                    kept.attended[note.index] = note.parameters
                    if not note.is_listed:
                        kept.unlisted.add(note.index)
                case Acknowledged():
                    kept.unlisted.discard(note.index)
                    kept.acknowledged.add(note.index)
                case Delivered():
                    kept.delivered[note.index] = note.survivors
                case Shown():
                    kept.shown[note.index] = note
        return kept


@dataclass(frozen=True)
class KeptReceipts:
    """The directory with a client's notes and receipts: one append-only file for every run."""

    path: Path
    _decoded: dict[bytes, tuple[bytes, KeptRun]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cache by run id: the complete lines of the run's file when it was last read, and the notes decoded from them."""

    def file(self, run: bytes) -> Path:
        return self.path / f"{run.hex()}.jsonl"

    def read(self, run: bytes) -> KeptRun:
        """Return the notes and receipts of a run; empty if the client has none.  Only new lines are decoded."""
        lines = _complete_lines(self.file(run)) if self.file(run).exists() else b""
        known, kept = self._decoded.get(run, (b"", KeptRun()))
        if not lines.startswith(known):
            known, kept = b"", KeptRun()
        if lines != known:
            kept = kept.with_lines(lines[len(known) :], self.file(run))
            self._decoded[run] = lines, kept
        return kept

    def note_attended(self, parameters: Parameters) -> None:
        """Note a participation durably, before the upload; a second call for the same round does nothing."""
        if parameters.index not in self.read(parameters.run).attended:
            is_listed = bool(parameters.clients)
            self._add(parameters.run, [Attended(parameters.index, parameters.digest.hex(), is_listed)])

    def note_acknowledged(self, run: bytes, index: int) -> None:
        """Note durably that the server acknowledged the contribution to a round; do nothing if parameters list clients.

        From then on, a history that has this round must have its receipt.
        """
        if index in self.read(run).unlisted:
            self._add(run, [Acknowledged(index)])

    def note_delivered(self, parameters: Parameters, survivors: Sequence[int]) -> None:
        """Note durably that the whole sum of a round arrived; `survivors` has the number of survivors of each chunk."""
        self._add(parameters.run, [Delivered(parameters.index, tuple(survivors))])

    def compare(
        self, run: bytes, shown: Sequence[Shown], keys: Mapping[ClientId, bytes], *, complete: bool, me: ClientId
    ) -> None:
        """Store the new entries of a server's history; raise HistoryContradicted if it contradicts the stored notes.

        `shown` is the history: receipts, or their hashes, in the order of the rounds.  If it is `complete` it begins
        with the run's first round, otherwise after the last stored entry.  `keys` are the members' public signing keys.
        `me` is the id of this client.  HistoryContradicted is also raised if a receipt has this client among the
        survivors of a round of which there is no note: then the notes are an old copy.
        """
        kept = self.read(run)
        check_history(kept, shown, complete=complete, where=self.file(run))
        fresh = [entry for entry in shown if entry.index not in kept.shown]
        for entry in fresh:
            if entry.receipt is not None:
                check_shown_receipt(entry, run)
                verify_receipt(entry.receipt, keys)
        check_own_state(kept, fresh, me, self.file(run))
        check_own_arrival(kept, fresh, me)
        if fresh:
            self._add(run, fresh)

    def _add(self, run: bytes, lines: Iterable[Note]) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with AppendOnlyFile(self.file(run), PRIVATE).locked() as file:
            data = file.read()
            file.truncate(data.rfind(b"\n") + 1)
            file.append(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def read_kept(path: Path) -> KeptRun:
    """Return the notes and receipts in the file of a run; raise InputError if it cannot be read."""
    return KeptRun().with_lines(_complete_lines(path), path)


def _complete_lines(path: Path) -> bytes:
    """Return the lines of a file; an incomplete last line is left out."""
    with explain_os_errors(f"read the kept receipts {path}"):
        data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]


def check_history(kept: KeptRun, shown: Sequence[Shown], *, complete: bool, where: Path) -> None:
    """Raise HistoryContradicted if `shown`, the receipts or hashes that a server shows, contradicts a client's notes.

    The error names the round, and `where`, the file with the notes.  A `complete` history has all rounds of the run.
    """
    try:
        indices = [entry.index for entry in shown]
        if indices != sorted(set(indices)):
            raise HistoryContradicted("its rounds are not in order")
        history = {entry.index: entry for entry in shown}
        check_nothing_rewritten(kept, history, complete=complete)
        everything = history | kept.shown  # a stored receipt may be shown again by its hash alone
        check_links(everything)
        check_attended(kept, everything)
        check_delivered(kept, everything)
    except HistoryContradicted as error:
        raise HistoryContradicted(
            f"the server's history of this run contradicts what this client kept in {where}: {error}. Do not go on "
            "with this server before its operator has explained it; show the file to the other members"
        ) from None


def check_nothing_rewritten(kept: KeptRun, history: History, *, complete: bool) -> None:
    """Raise HistoryContradicted if the history has another hash for a receipt that the server showed earlier.

    Raise it too if the receipt is missing from a `complete` history, which has all rounds of the run.
    """
    for index, before in kept.shown.items():
        now = history.get(index)
        if complete if now is None else now.digest != before.digest:
            what = "is missing" if now is None else "was replaced"
            raise HistoryContradicted(f"the receipt of round index {index}, which it showed before, {what}")


def check_links(history: History) -> None:
    """Raise HistoryContradicted if the receipts that a server shows are not linked by their hashes.

    A receipt must hash to the digest in its entry, and state the digest of the entry before as `previous`.
    """
    previous = FIRST
    for index, entry in sorted(history.items()):
        if entry.receipt is not None and (entry.receipt.digest, entry.receipt.previous) != (entry.digest, previous):
            raise HistoryContradicted(f"the receipt of round index {index} does not follow the one before it")
        previous = entry.digest


def check_attended(kept: KeptRun, history: History) -> None:
    """Raise HistoryContradicted if a server's history contradicts a note about a round that this client attended.

    If the history has the round, its receipt must have the noted parameters and, if the sum was delivered, as many
    survivors in each chunk as the client was told.  The receipt may be left out only if the parameters list no clients
    and the server did not acknowledge the contribution.
    """
    for index, parameters in kept.attended.items():
        entry = history.get(index)
        if entry is None:  # the attempt failed, or is not finished yet
            continue
        if entry.receipt is None and index in kept.unlisted:  # the contribution was lost, or came too late
            continue
        if entry.receipt is None:
            raise HistoryContradicted(f"it says that this client was not in round index {index}")
        if entry.receipt.parameters != parameters:
            raise HistoryContradicted(f"round index {index} has other parameters than this client agreed to")
        counted = kept.delivered.get(index)
        if counted is not None and counted != tuple(map(len, entry.receipt.survivors)):
            raise HistoryContradicted(f"round index {index} has other numbers of survivors than this client was told")


def check_delivered(kept: KeptRun, history: History) -> None:
    """Raise HistoryContradicted if a round whose sum arrived is missing from a history that has later rounds."""
    for index in kept.delivered:
        if index not in history and any(later > index for later in history):
            raise HistoryContradicted(f"round index {index}, whose sum reached this client, is missing")


def check_shown_receipt(entry: Shown, run: bytes) -> None:
    """Raise HistoryContradicted unless a receipt is of this run and of the index of its entry."""
    if entry.receipt is not None and (entry.receipt.run, entry.receipt.index) != (run.hex(), entry.index):
        raise HistoryContradicted(f"the receipt shown for round index {entry.index} is of another run or round")


def check_own_state(kept: KeptRun, fresh: Iterable[Shown], me: ClientId, where: Path) -> None:
    """Raise HistoryContradicted if a sum contains the input of this client, but the client has no note of the round.

    A client notes its participation before every upload.  If the note is missing, the state was lost or is an old copy.
    """
    for entry in fresh:
        survivors = () if entry.receipt is None else entry.receipt.survivors
        if entry.index not in kept.attended and any(me in chunk for chunk in survivors):
            raise HistoryContradicted(
                f"the sum of round index {entry.index} has the input of this client, and {where} has no note of it: "
                "this state is an old copy or a new one, and counts too few participations. Put the newest state back, "
                "or take part in a later run with new keys (dordis keys rotate)"
            )


def check_own_arrival(kept: KeptRun, fresh: Iterable[Shown], me: ClientId) -> None:
    """Raise HistoryContradicted if a receipt does not list this client, whose contribution the server acknowledged.

    The sum may lack the client's input, since helpers may exclude a contribution, but the receipt lists all arrivals.
    """
    for entry in fresh:
        if entry.receipt is not None and entry.index in kept.acknowledged and me not in entry.receipt.clients:
            raise HistoryContradicted(
                f"the receipt of round index {entry.index} does not list this client, although the server acknowledged "
                "its contribution. Do not go on with this server before its operator has explained it"
            )
