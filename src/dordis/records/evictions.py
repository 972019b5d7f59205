"""Clients evicted from the rest of a run, on disk before the next round; and the complaints of assisted runs."""

from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from dordis.durable_files import PUBLIC, AppendOnlyFile, read_complete_lines
from dordis.errors import InputError
from dordis.protocol import ClientId
from dordis.protocols.assisted.disputes import Complaints
from dordis.rounds.arrivals import COMPLAINTS, decode_standing


class Eviction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Clients evicted after the round with this index, and why: a line of `evictions.jsonl`.

    `run` is the id of the earlier run that evicted them, in hex; empty for the run of this file.
    """

    index: int
    clients: tuple[int, ...]
    reason: str
    run: str = ""


class Evictions:
    """The evicted clients of a run, in a file, or in memory if `path` is None."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.lines: tuple[Eviction, ...] = () if path is None else read_evictions(path)

    @property
    def clients(self) -> frozenset[ClientId]:
        """Return all evicted clients."""
        return frozenset(ClientId(u) for line in self.lines for u in line.clients)

    def after(self, index: int) -> tuple[int, ...]:
        """Return the clients evicted after the round with this index of this run."""
        return tuple(u for line in self.lines if line.index == index and not line.run for u in line.clients)

    def add(self, index: int, clients: Collection[ClientId], reason: str, run: str = "") -> tuple[ClientId, ...]:
        """Evict clients durably; return those that were not evicted before."""
        fresh = tuple(sorted(set(clients) - self.clients))
        if fresh:
            line = Eviction(index, fresh, reason, run)
            if self._path is not None:
                with AppendOnlyFile(self._path, PUBLIC).locked() as file:
                    file.append(msgspec.json.encode(line) + b"\n")
            self.lines += (line,)
        return fresh

    def inherit(self, lines: Iterable[Eviction], run: str) -> None:
        """Evict the clients that an earlier run or its predecessors evicted."""
        for line in lines:
            self.add(line.index, [ClientId(u) for u in line.clients], line.reason, line.run or run)


def read_evictions(path: Path) -> tuple[Eviction, ...]:
    """Read the evictions of a run; none if there is no file."""
    try:
        return tuple(msgspec.json.decode(line, type=Eviction) for line in read_complete_lines(path))
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not what dordis wrote: {error}") from None


def read_complaints(run: Path) -> Complaints:
    """Read the complaints of an assisted run from its directory; none if there is no file."""
    path = run / COMPLAINTS
    return decode_standing(path.read_bytes(), Complaints, path) if path.exists() else Complaints()
