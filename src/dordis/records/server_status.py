"""Files of a server beside the records of its runs: queue of runs, connected clients, complaints in assisted runs.

The queue is a folder of configurations, which run one after the other in the order of their names.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dordis.durable_files import write_atomically
from dordis.errors import InputError
from dordis.protocol import ClientId
from dordis.protocols.assisted.disputes import Complaints
from dordis.records.run_records import MANIFEST
from dordis.rounds.arrivals import COMPLAINTS, decode_standing

QUEUE = "queue.json"
"""Name of the file in the folder of a queue; the file lists the runs that have begun, by configuration."""
CONNECTED = "connected.json"
"""Name of the file in a run's directory; the file lists the connected clients."""


class QueuedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run of a configuration: its directory, and whether it is over."""

    run: str
    over: bool = False


@dataclass(frozen=True)
class RunQueue:
    """The configurations in a folder, each to be run once; configurations that are added later are run too."""

    folder: Path

    def __post_init__(self) -> None:
        if (self.folder / MANIFEST).exists():
            raise InputError(f"{self.folder} is the directory of a run: give it with --resume")
        if not self.entries():
            raise InputError(f"there is no configuration in {self.folder}: put .toml files there")

    def entries(self) -> dict[str, QueuedRun | None]:
        """Return the run of each configuration, by the configuration's file name; None for a run that has not begun."""
        begun = self._begun()
        names = {path.name for path in self.folder.glob("*.toml")} | begun.keys()
        return {name: begun.get(name) for name in sorted(names)}

    def next_run(self) -> tuple[str, Path | None] | None:
        """Return the name of the first configuration whose run is not over, and the run's directory (None: not begun).

        Return None if all runs are over.
        """
        for name, entry in self.entries().items():
            if entry is None:
                return name, None
            if not entry.over:
                return name, Path(entry.run)
        return None

    def begin(self, name: str, run: Path) -> None:
        """Record that the run of the configuration `name` has begun, in the directory `run`."""
        self._write(self._begun() | {name: QueuedRun(str(run.resolve()))})

    def finish(self, name: str) -> None:
        """Record that the run of a configuration is over."""
        begun = self._begun()
        self._write(begun | {name: QueuedRun(begun[name].run, over=True)})

    def _begun(self) -> dict[str, QueuedRun]:
        path = self.folder / QUEUE
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, QueuedRun]) if path.exists() else {}
        except msgspec.DecodeError as error:
            raise InputError(f"{path} is not what dordis wrote: {error}; remove it to run all again") from None

    def _write(self, begun: dict[str, QueuedRun]) -> None:
        write_atomically(self.folder / QUEUE, msgspec.json.format(msgspec.json.encode(begun), indent=2) + b"\n")


class ConnectedClients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The clients that were connected at the latest round of a deployed run, and the deadlines that clients missed."""

    clients: tuple[int, ...] = ()
    missed: dict[ClientId, dict[str, int]] = {}
    """By client and request: the number of rounds in which the client missed the deadline of the request."""


def write_connected(path: Path, connected: ConnectedClients) -> None:
    """Write the connected clients of a deployed run to a file for `dordis status`; errors of the disk are ignored."""
    if connected == read_connected(path):
        return
    with contextlib.suppress(OSError):
        write_atomically(path / CONNECTED, msgspec.json.encode(connected) + b"\n")


def read_connected(path: Path) -> ConnectedClients:
    """Return the connected clients at the latest round; empty if no file is readable, as in simulated runs."""
    try:
        return msgspec.json.decode((path / CONNECTED).read_bytes(), type=ConnectedClients)
    except (OSError, msgspec.DecodeError):
        return ConnectedClients()


def read_complaints(run: Path) -> Complaints:
    """Return the helpers' complaints about clients in an assisted run, and who was evicted; empty without a file."""
    path = run / COMPLAINTS
    return decode_standing(path.read_bytes(), Complaints, path) if path.exists() else Complaints()
