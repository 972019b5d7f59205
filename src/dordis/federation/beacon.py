"""The beacon: public randomness, one value a round, from a source that is fixed before and that no server controls."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dordis.crypto import kdf
from dordis.errors import InputError, ProtocolError
from dordis.protocols.parameters import INDEX_BYTES, RUN_BYTES, Parameters

VALUE_BYTES = 32
_LINE = 2 * VALUE_BYTES + 1
_VALUE = re.compile(rb"[0-9a-f]{64}\n")


class Beacon(Protocol):
    """Where a round's public randomness comes from; `source` goes into the run's manifest."""

    @property
    def source(self) -> str:
        """Describe the source, so that others can find the same values."""
        ...

    def value(self, index: int) -> bytes:
        """Return the 32 bytes of a round."""
        ...


@dataclass(frozen=True)
class FileBeacon:
    """A file of published randomness: line i (from 0) has the value of round i, 64 lower-case hex digits.

    `publisher` says who publishes them and where.  Lines may be appended while a run goes on; one without its end is
    not published yet.
    """

    path: Path
    publisher: str = ""

    @property
    def source(self) -> str:
        """Describe the source by its publisher, or by the file's name."""
        return f"file: {self.publisher or self.path.name}"

    def value(self, index: int) -> bytes:
        """Return the 32 bytes of a round, if they are published."""
        check_index(index)
        first = index * _LINE
        with self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < first + _LINE:
                raise InputError(f"the beacon of round {index} is not published yet in {self.path.name}")
            file.seek(max(0, first - 1))
            before = file.read(1) if first else b"\n"
            line = file.read(_LINE)
        if before != b"\n" or not _VALUE.fullmatch(line):
            raise InputError(
                f"line {index + 1} of {self.path.name} is not at its place or not 64 lower-case hex digits"
            )
        return bytes.fromhex(line.decode())


@dataclass(frozen=True, repr=False)
class SeedBeacon:
    """Values from a seed, for simulations: whoever knows the seed knows every round's value beforehand.

    >>> SeedBeacon(bytes(32)).value(0).hex()[:16]
    '6ac08f4a54863192'
    """

    seed: bytes

    @property
    def source(self) -> str:
        """Describe the source by a hash of the seed, which is not a secret but is not told beforehand either."""
        return f"seed: {hashlib.sha256(b'dordis/v1/beacon/source' + self.seed).hexdigest()}"

    def value(self, index: int) -> bytes:
        """Return the 32 bytes of a round."""
        check_index(index)
        return kdf.expand(self.seed, b"dordis/v1/beacon/%d" % index, VALUE_BYTES)


def check_beacon(parameters: Parameters, beacon: Beacon) -> None:
    """The round's beacon is the one that I read from the source myself."""
    index = parameters.index
    if parameters.beacon != beacon.value(index):
        raise ProtocolError(f"the beacon of round {index} is not the published one")


def check_index(index: int) -> None:
    """An index is what a round id has room for."""
    if not 0 <= index < 2 ** (8 * INDEX_BYTES):
        raise InputError(f"a round's index lies in 0..2^64 - 1, {index} does not")


def check_run_id(run: bytes) -> None:
    """A run id is a SHA-256."""
    if len(run) != RUN_BYTES:
        raise InputError(f"a run id has {RUN_BYTES} bytes, not {len(run)}")
