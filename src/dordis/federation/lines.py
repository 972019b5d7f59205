"""The lines of a privacy ledger: their one encoding, and the hash that covers each.

A line is JSON.  It holds the SHA-256 of the line before, the first one the run id, which is the hash of the run's
manifest; and it ends with a hash of itself, so that the last line is covered too.
"""

import hashlib
import re
from contextlib import suppress
from fractions import Fraction
from typing import Literal

import msgspec

from dordis.errors import LedgerDamaged
from dordis.federation.charges import Charge, Fact

Format = Literal["dordis ledger 1", "dordis ledger 2"]
FORMAT_1: Format = "dordis ledger 1"
FORMAT_2: Format = "dordis ledger 2"
"""The first one stated epsilon by Renyi divergences; its ledgers are verified as they were written."""
_FRACTION = re.compile(r"[0-9]{1,40}(/[0-9]{1,40})?")
_LINE = re.compile(rb'(\{[^\n]*),"check":"([0-9a-f]{64})"\}\n')


class Opened(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="opened"):
    """The first line: for which run, and what it may cost."""

    previous: str
    delta: float
    budget: float | None
    format: Format = FORMAT_2


class Counted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="counted"):
    """Clients were asked for their uploads: their owners may have counted a round of this cost, whatever becomes of it.

    Without a cost, owners count none.
    """

    previous: str
    index: int
    clients: tuple[int, ...]
    cost: float | None
    distance: float


class Reserved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="reserved"):
    """A round is charged; an unmask request may leave from here on."""

    previous: str
    charge: Charge


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="refused"):
    """A round that the budget refused; as the last line it says that the budget ended the run."""

    previous: str
    charge: Charge


class Completed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="completed"):
    """A round has an output; the facts of each chunk replace what was reserved."""

    previous: str
    index: int
    facts: tuple[Fact, ...]


class Succeeded(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="succeeded"):
    """The run ends here and another one begins, with other members; what was spent so far counts on."""

    previous: str
    run: str
    delta: float
    budget: float | None


Entry = Opened | Counted | Reserved | Refused | Completed | Succeeded


def line_of(entry: Entry) -> bytes:
    """Write the one encoding of an entry, with a hash of itself at the end."""
    body = msgspec.json.encode(entry, enc_hook=_write_fraction)[:-1]
    return b'%b,"check":"%b"}\n' % (body, hashlib.sha256(body).hexdigest().encode())


def entry_of(line: bytes, number: int) -> Entry:
    """Read a line that is written in its one encoding."""
    match = _LINE.fullmatch(line)
    entry: Entry | None = None
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        entry = msgspec.json.decode(match[1] + b"}", type=Entry, dec_hook=_read_fraction) if match else None
    if entry is None or line_of(entry) != line:
        raise LedgerDamaged("was altered: restore the file", number)
    return entry


def _write_fraction(value: object) -> str:
    if isinstance(value, Fraction):
        return str(value)
    raise NotImplementedError


def _read_fraction(kind: type, value: object) -> Fraction:
    if kind is not Fraction or not isinstance(value, str) or not _FRACTION.fullmatch(value):
        raise ValueError("a variance is written as a fraction")
    try:
        return Fraction(value)
    except ZeroDivisionError:
        raise ValueError("a variance is written as a fraction") from None
