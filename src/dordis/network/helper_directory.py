"""The state directory of a helper: values that it must keep, or must erase, across restarts.

An epoch is one round of a run, and an epoch key is the helper's key pair for that round.  The directory has:
- `values/`: a file for the private half of each epoch key, and a file for each round index with the digest of the U3
  (the clients in the sum) that the helper signed.  An erased value is overwritten with zeros, and its file stays.
- `boxes/`: the latest round's requests to open boxes, so that a restarted helper opens the boxes again.  A box is a
  client's mask seeds, encrypted to the helper's epoch key.
- `rounds`: the list of the rounds in which the helper served.

A further file is outside the directory, beside the helper's key file.  It has the number of values ever stored, by
which a lost directory or an older copy is detected, and the last epoch of each run, so that no epoch gets a second key.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from dordis import wire
from dordis.durable_files import (
    PRIVATE,
    AppendOnlyFile,
    overwrite_with_zeros,
    remove_drafts,
    write_atomically,
    write_new,
)
from dordis.errors import InputError, ParametersRefused
from dordis.protocols.assisted.helper import HelperStore
from dordis.protocols.assisted.messages import OpenBoxes

COUNT = ".count"
"""Suffix of the file beside the key file; the file has the number of values ever stored and each run's last epoch."""
LOST = "lost"
"""Name of the file with the number of lost values: those that were missing when an older copy was detected."""
_EPOCH, _SEPARATOR, _LENGTH = "epoch/", ".", 8
DAY = timedelta(days=1)


class FileHelperStore(HelperStore):
    """A `HelperStore` in files: values are on disk when a function returns, and erased values are zeros.

    The file `count`, outside the directory, states how many values were ever stored, and for each run the last epoch
    with a key.  No further key is made for that epoch or an earlier one of the run.

    If the directory has fewer values than `count` states, it is an older copy.  After the copy was made, the helper may
    have signed a U3 for a round whose key is in the copy; it must never sign a different U3 for that round.  Therefore
    all epoch keys in the copy are erased, and the helper serves only rounds whose keys it makes from then on.
    """

    def __init__(self, directory: Path, count: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory, self._count = directory, count
        for draft in directory.glob(".*.new"):
            draft.unlink(missing_ok=True)
        remove_drafts(count)
        self._values = {
            path.name.replace(_SEPARATOR, "/"): path.read_bytes().strip(b"\0") and path.read_bytes()
            for path in directory.iterdir()
        }
        self._lost = _number(self._values.pop(LOST, b"0"), directory / LOST)
        counted, self._epochs = _read_count(count)
        for key in self._values:
            self._note_epoch(key)
        missing = counted - self._size
        self.is_older_copy = missing > 0
        if self.is_older_copy:
            for key in self.keys(_EPOCH):
                self.erase(key)
            write_atomically(directory / LOST, b"%d\n" % (self._lost + missing), PRIVATE)
            self._lost += missing
        elif missing < 0:  # the process stopped between storing a value and counting it
            self._write_count()

    def __repr__(self) -> str:
        return f"<FileHelperStore of {len(self._values)} values>"

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def claim(self, key: str, value: bytes) -> bytes:
        """Return the value stored under `key`; if none was ever stored, store `value` durably and return it.

        Return empty bytes if the value was erased.  Also return empty bytes, and store nothing, if `key` names an epoch
        key that is not in the directory but may have been there: its epoch is not after the last recorded epoch.
        """
        if key not in self._values:
            if self._is_past_epoch(key):
                return b""
            write_new(self._path(key), value)
            self._values[key] = value
            self._note_epoch(key)
            self._write_count()
        return self._values[key]

    def erase(self, key: str) -> None:
        """Erase a value; its file stays, with zeros, so that no other value is ever stored under the key."""
        overwrite_with_zeros(self._path(key))
        self._values[key] = b""

    def keys(self, prefix: str) -> list[str]:
        return [key for key, value in self._values.items() if value and key.startswith(prefix)]

    def _path(self, key: str) -> Path:
        return self._directory / key.replace("/", _SEPARATOR)

    @property
    def _size(self) -> int:
        """Return how many values were ever stored: those in the directory, erased or not, and the lost ones.

        Values are lost if the directory is replaced by an older copy.
        """
        return len(self._values) + self._lost

    def _is_past_epoch(self, key: str) -> bool:
        """Tell whether `key` names an epoch key whose epoch is not after the last recorded epoch of its run."""
        run, epoch = _split_epoch(key)
        return epoch is not None and epoch <= self._epochs.get(run, -1)

    def _note_epoch(self, key: str) -> None:
        run, epoch = _split_epoch(key)
        if epoch is not None:
            self._epochs[run] = max(epoch, self._epochs.get(run, epoch))

    def _write_count(self) -> None:
        epochs = (f"{run} {epoch}\n" for run, epoch in sorted(self._epochs.items()))
        write_atomically(self._count, f"{self._size}\n{''.join(epochs)}".encode(), PRIVATE)


def _split_epoch(key: str) -> tuple[str, int | None]:
    """Return run and epoch if `key` names an epoch key; return an empty run and the epoch None for another value."""
    run, _, epoch = key.removeprefix(_EPOCH).rpartition("/")
    return (run, int(epoch)) if key.startswith(_EPOCH) else ("", None)


def _read_count(path: Path) -> tuple[int, dict[str, int]]:
    """Return the number of values ever stored in `values/`, and each run's last epoch; raise InputError if damaged."""
    if not path.exists():
        return 0, {}
    try:
        first, *lines = path.read_text().splitlines()
        epochs = dict(line.split(" ") for line in lines)
        return int(first), {run: int(epoch) for run, epoch in epochs.items()}
    except (OSError, ValueError):
        raise _damaged(path) from None


def _number(data: bytes, path: Path) -> int:
    try:
        return int(data)
    except ValueError:
        raise _damaged(path) from None


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is damaged: restore it, or enrol this helper under a new identity")


@dataclass(frozen=True)
class BoxJournal:
    """The requests to open boxes of the latest round, on disk.

    A request is stored before the helper replies.  Boxes that an earlier request contained are not stored again.
    """

    directory: Path
    _known: set[int] = field(default_factory=set)
    """Clients whose boxes of the present round are in the journal."""

    def append(self, request: OpenBoxes) -> None:
        """Store the boxes of a request that are not stored yet; delete the boxes of earlier rounds."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.directory / request.parameters.round.hex()
        for other in self.directory.iterdir():
            if other != path:
                other.unlink()
                self._known.clear()
        new = {u: entry for u, entry in request.entries.items() if u not in self._known}
        if new or not path.exists():
            frame = wire.encode(OpenBoxes(request.parameters, new))
            with AppendOnlyFile(path, PRIVATE).locked() as file:
                file.append(len(frame).to_bytes(_LENGTH, "big") + frame)
            self._known.update(new)

    def read(self) -> list[OpenBoxes]:
        """Return the stored requests of the latest round, without an incomplete last one, which was never answered."""
        requests = []
        for path in sorted(self.directory.glob("*")):
            data = path.read_bytes()
            while len(data) >= _LENGTH:
                length, data = int.from_bytes(data[:_LENGTH], "big"), data[_LENGTH:]
                if len(data) < length:
                    break
                requests.append(wire.decode(data[:length], OpenBoxes))
                data = data[length:]
        return requests

    def cut(self) -> None:
        """Remove an incomplete last request from the journal."""
        requests = self.read()
        for path in self.directory.glob("*"):
            path.unlink()
        for request in requests:
            self.append(request)


class ServedRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the file `rounds`: a round that the helper served in."""

    round: str
    seen: datetime


@dataclass(frozen=True)
class ServedRounds:
    """The file with the rounds that a helper has served in; it bounds the number of new rounds per day."""

    path: Path

    def serve(self, round: bytes, now: datetime, most: int) -> None:
        """Record a new round durably; do nothing if the round is recorded already.

        Raise ParametersRefused if the round is new and `most` rounds were recorded in the 24 hours before `now`.
        """
        with AppendOnlyFile(self.path, PRIVATE).locked() as file:
            data = file.read()
            complete = data[: data.rfind(b"\n") + 1]
            try:
                known = [msgspec.json.decode(line, type=ServedRound) for line in complete.splitlines()]
            except msgspec.DecodeError as error:
                raise InputError(f"{self.path} is not what dordis wrote: {error}; restore it from a backup") from None
            if any(one.round == round.hex() for one in known):
                return
            check_rounds_a_day(sum(one.seen > now - DAY for one in known), most)
            file.truncate(len(complete))
            file.append(msgspec.json.encode(ServedRound(round.hex(), now.astimezone(UTC))) + b"\n")


def check_rounds_a_day(recent: int, most: int) -> None:
    """Raise ParametersRefused if `recent`, the number of rounds served in the last 24 hours, has reached `most`."""
    if recent >= most:
        raise ParametersRefused(f"the helper's policy, line 'rounds_a_day', forbids this round: {recent} were served")
