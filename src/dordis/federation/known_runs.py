"""The runs that a client knows: their ids are kept, and no server gets it to look at many new ones in a day.

A run id decides who is selected when.  Who could show a client one manifest after the other would see, each time, in
which rounds the client takes part, and go on with the run that suits.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from dordis.errors import InputError, ParametersRefused
from dordis.federation.durable import PRIVATE, FileLines

DAY = timedelta(days=1)


class KnownRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run that this client has accepted: a line of the file."""

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
        """Keep a run that is new, durably when this returns; refuse one too many, and nothing that is known."""
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
            raise InputError(f"{self.path} is not what dordis wrote: {error}; put it right first") from None


def check_few_runs(known: tuple[KnownRun, ...], now: datetime, runs_a_day: int) -> None:
    """A server does not show this client run after run until it likes a selection."""
    recent = [one for one in known if one.seen > now - DAY]
    if len(recent) >= runs_a_day:
        raise ParametersRefused(
            f"the server has begun another run, and this client has seen {len(recent)} new ones since "
            f"{min(one.seen for one in recent):%Y-%m-%dT%H:%M:%SZ}: a server may be looking for a selection that suits "
            f"it. If not, wait, or raise deployment.runs_a_day = {runs_a_day} in this client's configuration"
        )
