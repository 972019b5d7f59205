"""The runs that a client has accepted, and the bound on new runs per day.

A run id decides the selection of every round.  Without the bound a server could start run after run, see each time in
which rounds the client takes part, and continue with the most convenient run.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from dordis.errors import InputError, ParametersRefused
from dordis.federation.durable import PRIVATE, FileLines

DAY = timedelta(days=1)


class KnownRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An accepted run: a line of the file."""

    run: str
    """Its run id, in hex: the SHA-256 of its manifest."""
    created: str
    """When it began, as its manifest says."""
    seen: datetime
    """When this client saw it first."""


@dataclass(frozen=True)
class KnownRuns:
    """The runs that a client has accepted, in a file that is only ever appended to."""

    path: Path

    def accept(self, run: bytes, created: str, now: datetime, runs_a_day: int) -> None:
        """Record a new run durably, or raise beyond `runs_a_day`; a known run is always accepted."""
        with FileLines(self.path, PRIVATE).locked() as file:
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            known = self._read(whole)
            if any(one.run == run.hex() for one in known):
                return
            check_few_runs(known, now, runs_a_day)
            file.cut(len(whole))
            file.append(msgspec.json.encode(KnownRun(run.hex(), created, now.astimezone(UTC))) + b"\n")

    def _read(self, data: bytes) -> tuple[KnownRun, ...]:
        try:
            return tuple(msgspec.json.decode(line, type=KnownRun) for line in data.splitlines())
        except msgspec.DecodeError as error:
            raise InputError(f"{self.path} is not what dordis wrote: {error}; restore it from a backup") from None


def check_few_runs(known: tuple[KnownRun, ...], now: datetime, runs_a_day: int) -> None:
    """The client has accepted fewer than `runs_a_day` new runs in the last 24 hours."""
    recent = [one for one in known if one.seen > now - DAY]
    if len(recent) >= runs_a_day:
        raise ParametersRefused(
            f"the server has begun another run, and this client has accepted {len(recent)} new runs since "
            f"{min(one.seen for one in recent):%Y-%m-%dT%H:%M:%SZ}: the server may be searching for a convenient "
            f"selection. If not, wait, or raise deployment.runs_a_day = {runs_a_day} in this client's configuration"
        )
