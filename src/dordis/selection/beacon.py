"""The beacon: public randomness, one value a round, from a source fixed before the run, which no server controls."""

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from dordis.crypto import kdf
from dordis.errors import BeaconNotPublished, InputError, ProtocolError, explain_os_errors
from dordis.protocols.parameters import INDEX_BYTES, RUN_BYTES, Parameters

VALUE_BYTES = 32
_FORM = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) ([0-9a-f]{64})\n")
_LINE = len("2026-01-31T12:00:00Z ") + 2 * VALUE_BYTES + 1
MARGIN = 1
"""Number of lines after the last published line that a new run skips: the server may know the next line already."""


class Beacon(Protocol):
    """A source of public randomness, one value for each round; `source` and `first` go into the run's manifest."""

    @property
    def source(self) -> str:
        """Return a description of the source, by which others can find the same values."""

    @property
    def first(self) -> int | None:
        """Return the number of the published line for round 0; None if the source has no lines."""

    def value(self, index: int) -> bytes:
        """Return the 32 random bytes of a round."""


@dataclass(frozen=True)
class FileBeacon:
    """A file of published randomness, a line for each value: its time in UTC, a space, 64 lower-case hex digits.

    An example is `2026-01-31T12:00:00Z 5f1c...`.  Every line has a later time than the line before it.  Lines are
    counted from 0, and line `first` + i has the value of round i.  `publisher` says who publishes the file and where.
    Lines may be appended during a run; a line without a newline is not published yet.  Lines that are not later than
    `after`, the date of a run's manifest, are refused, because their values could be known when the run id was chosen.
    """

    path: Path
    publisher: str = ""
    first: int = 0
    after: datetime | None = None

    @property
    def source(self) -> str:
        """Return who publishes the file, or the name of the file if no publisher is stated."""
        return f"file: {self.publisher or self.path.name}"

    def next_line(self) -> int:
        """Return the number of the first line that nobody can know yet: a run that begins now uses it for round 0."""
        return self._size() // _LINE + MARGIN

    def is_published(self, index: int) -> bool:
        """Tell whether the value of a round is in the file."""
        return self._size() >= (self.first + index + 1) * _LINE

    def value(self, index: int) -> bytes:
        """Return the 32 random bytes of a round; raise if they are not published yet."""
        check_index(index)
        if not self.is_published(index):
            raise BeaconNotPublished(
                f"the beacon of round {index} is not published yet in {self.path.name}, where it is line "
                f"{self.first + index + 1}: update the file"
            )
        line = self.first + index
        with self.path.open("rb") as file:
            file.seek(max(0, line - 1) * _LINE)
            before = self._parse(file.read(_LINE), line - 1) if line else None
            time, value = self._parse(file.read(_LINE), line)
        if before is not None and before[0] >= time:
            raise InputError(
                f"line {line + 1} of {self.path.name} is not later than the line before: get the published file again"
            )
        if self.after is not None:
            check_later(line, time, self.after)
        return value

    def _size(self) -> int:
        with explain_os_errors(f"read the beacon {self.path}"):
            return self.path.stat().st_size

    def _parse(self, line: bytes, number: int) -> tuple[datetime, bytes]:
        form = _FORM.fullmatch(line)
        try:
            if form is not None:
                return datetime.fromisoformat(form[1].decode()), bytes.fromhex(form[2].decode())
        except ValueError:  # an impossible date
            pass
        raise InputError(
            f"line {number + 1} of {self.path.name} does not begin where it should, or is not a time in UTC like "
            "2026-01-31T12:00:00Z, a space and 64 lower-case hex digits: get the published file again"
        )


@dataclass(frozen=True, repr=False)
class SeedBeacon:
    """A beacon with values from a seed, for simulations: a party with the seed knows every round's value beforehand.

    >>> SeedBeacon(bytes(32)).value(0).hex()[:16]
    '6ac08f4a54863192'
    """

    seed: bytes

    first = None

    @property
    def source(self) -> str:
        """Return a description with a hash of the seed; nobody can compute the values from this hash."""
        return f"seed: {hashlib.sha256(b'dordis/v1/beacon/source' + self.seed).hexdigest()}"

    def value(self, index: int) -> bytes:
        """Return the 32 random bytes of a round, which follow from the seed."""
        check_index(index)
        return kdf.expand(self.seed, b"dordis/v1/beacon/%d" % index, VALUE_BYTES)


def check_beacon(parameters: Parameters, beacon: Beacon) -> None:
    """Raise ProtocolError unless the beacon value in the parameters is the value of this round in `beacon`."""
    index = parameters.index
    if parameters.beacon != beacon.value(index):
        raise ProtocolError(f"the beacon of round {index} is not the published one")


def check_later(line: int, time: datetime, after: datetime) -> None:
    """Raise ProtocolError unless the beacon line is later than the manifest, whose date is `after`.

    A server that knew the line when it made the manifest could try many run ids, and use the one whose draw suits it.
    """
    if time <= after:
        raise ProtocolError(
            f"line {line + 1} of the beacon has the time {time:%Y-%m-%dT%H:%M:%SZ}, not later than the run's manifest, "
            f"{after.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}: the server"
            " must begin a run whose first line is not published yet"
        )


def check_index(index: int) -> None:
    """Raise InputError unless a round index is in 0..2^64 - 1, so that it fits into a round id."""
    if not 0 <= index < 2 ** (8 * INDEX_BYTES):
        raise InputError(f"a round's index lies in 0..2^64 - 1, {index} does not")


def check_run_id(run: bytes) -> None:
    """Raise InputError unless a run id has 32 bytes, the length of a SHA-256."""
    if len(run) != RUN_BYTES:
        raise InputError(f"a run id has {RUN_BYTES} bytes, not {len(run)}")
