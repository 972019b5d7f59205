"""Who a run goes on without: on disk before the next round begins, so that it lasts for the run."""

from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from dordis.errors import InputError
from dordis.federation.durable import PUBLIC, FileLines, whole_lines
from dordis.protocol import ClientId


class Eviction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Clients that had to go after the round with an index, and why: a line of `evictions.jsonl`.

    `run` is the earlier run, in hex, that they had to leave; it is empty for the run that the file is of.
    """

    index: int
    clients: tuple[int, ...]
    reason: str
    run: str = ""


class Evictions:
    """The clients that were evicted from a run; without a `path` they last as long as the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.lines: tuple[Eviction, ...] = () if path is None else read_evictions(path)

    @property
    def clients(self) -> frozenset[ClientId]:
        """Return everyone who was evicted."""
        return frozenset(ClientId(u) for line in self.lines for u in line.clients)

    def after(self, index: int) -> tuple[int, ...]:
        """Return who had to go after the round with an index of this run."""
        return tuple(u for line in self.lines if line.index == index and not line.run for u in line.clients)

    def add(self, index: int, clients: Collection[ClientId], reason: str, run: str = "") -> tuple[ClientId, ...]:
        """Evict clients, durably when this returns; return those who were not evicted before."""
        fresh = tuple(sorted(set(clients) - self.clients))
        if fresh:
            line = Eviction(index, fresh, reason, run)
            if self._path is not None:
                with FileLines(self._path, PUBLIC).locked() as file:
                    file.append(msgspec.json.encode(line) + b"\n")
            self.lines += (line,)
        return fresh

    def inherit(self, lines: Iterable[Eviction], run: str) -> None:
        """Evict whoever had to leave an earlier run, or one before that."""
        for line in lines:
            self.add(line.index, [ClientId(u) for u in line.clients], line.reason, line.run or run)


def read_evictions(path: Path) -> tuple[Eviction, ...]:
    """Read who was evicted from a run; nobody, if there is no file."""
    try:
        return tuple(msgspec.json.decode(line, type=Eviction) for line in whole_lines(path))
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not what dordis wrote: {error}") from None
