"""A queue of runs: the configurations of a folder, run one after the other in the order of their names."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from dordis.durable_files import write_atomically
from dordis.errors import InputError
from dordis.records.run_records import MANIFEST

FILE = "queue.json"
"""Name of the file in the folder that lists the begun runs by configuration."""


class QueuedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run of a configuration: its directory, and whether it is over."""

    run: str
    over: bool = False


@dataclass(frozen=True)
class RunQueue:
    """The configurations of a folder and their runs; files that are added later run as well."""

    folder: Path

    def __post_init__(self) -> None:
        if (self.folder / MANIFEST).exists():
            raise InputError(f"{self.folder} is the directory of a run: give it with --resume")
        if not self.entries():
            raise InputError(f"there is no configuration in {self.folder}: put .toml files there")

    def entries(self) -> dict[str, QueuedRun | None]:
        """Return the runs by the name of their configuration; None for a run that has not begun."""
        begun = self._begun()
        names = {path.name for path in self.folder.glob("*.toml")} | begun.keys()
        return {name: begun.get(name) for name in sorted(names)}

    def next_run(self) -> tuple[str, Path | None] | None:
        """Return the first unfinished configuration, with its run if that has begun; None if all are finished."""
        for name, entry in self.entries().items():
            if entry is None:
                return name, None
            if not entry.over:
                return name, Path(entry.run)
        return None

    def begin(self, name: str, run: Path) -> None:
        """Record the run of a configuration."""
        self._write(self._begun() | {name: QueuedRun(str(run.resolve()))})

    def finish(self, name: str) -> None:
        """Record that the run of a configuration is over."""
        begun = self._begun()
        self._write(begun | {name: QueuedRun(begun[name].run, over=True)})

    def _begun(self) -> dict[str, QueuedRun]:
        path = self.folder / FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, QueuedRun]) if path.exists() else {}
        except msgspec.DecodeError as error:
            raise InputError(f"{path} is not what dordis wrote: {error}; remove it to run all again") from None

    def _write(self, begun: dict[str, QueuedRun]) -> None:
        write_atomically(self.folder / FILE, msgspec.json.format(msgspec.json.encode(begun), indent=2) + b"\n")
