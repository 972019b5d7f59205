"""The entries of a privacy ledger and the encoding of its lines.

A line is JSON.  It has the SHA-256 of the line before (the first line has the run id, the hash of the manifest) and a
hash of itself at its end, so that the last line is covered too.
"""

import hashlib
import re
from contextlib import suppress
from fractions import Fraction
from typing import Literal

import msgspec

from dordis.errors import LedgerDamaged
from dordis.ledger.round_charge import Charge, ChunkOutcome
from dordis.privacy.record_accounting import SampledEvents

_FRACTION = re.compile(r"[0-9]{1,40}(/[0-9]{1,40})?")
_LINE = re.compile(rb'(\{[^\n]*),"check":"([0-9a-f]{64})"\}\n')


class Opened(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="opened"):
    """The first line: the run id and the budget."""

    previous: str
    delta: float
    budget: float | None
    format: Literal["dordis ledger 2"] = "dordis ledger 2"
    records: SampledEvents | msgspec.UnsetType = msgspec.UNSET
    """The planned events of one record, if records are the unit of privacy."""
    accounting: Literal["paper"] | msgspec.UnsetType = msgspec.UNSET
    """`paper` for the paper's accounting: every client pays for every round, and Renyi divergences are added up."""


class Counted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="counted"):
    """Clients are asked for uploads; their owners may have counted this cost even if the round fails.

    `cost` is theta^2 (docs/accounting.md), or None if owners count no cost.
    """

    previous: str
    index: int
    clients: tuple[int, ...]
    cost: float | None
    distance: float


class Reserved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="reserved"):
    """A round is charged at the least noise it may have; only after this line may an unmask request leave."""

    previous: str
    charge: Charge


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="refused"):
    """A round would exceed the budget; if this is the last line, the budget ended the run."""

    previous: str
    charge: Charge


class Completed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="completed"):
    """A round has an output; the outcomes of its chunks replace the reservation."""

    previous: str
    index: int
    outcomes: tuple[ChunkOutcome, ...] = msgspec.field(name="facts")


class RunCharged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="run"):
    """A whole run over the same data is charged to every client, at cost theta^2; the run's next line replaces it."""

    previous: str
    run: str
    label: str
    theta_squared: float
    failure: Fraction


class Succeeded(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="succeeded"):
    """The run ends and a successor with other members begins, which continues the spending of every client."""

    previous: str
    run: str
    delta: float
    budget: float | None


Entry = Opened | Counted | Reserved | Refused | Completed | RunCharged | Succeeded


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as a line, with a hash of itself at the end."""
    body = msgspec.json.encode(entry, enc_hook=write_fraction)[:-1]
    return b'%b,"check":"%b"}\n' % (body, hashlib.sha256(body).hexdigest().encode())


def decode_entry(line: bytes, number: int) -> Entry:
    """Return the entry in a line; raise LedgerDamaged unless `encode_entry` gives exactly this line."""
    match = _LINE.fullmatch(line)
    entry: Entry | None = None
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        entry = msgspec.json.decode(match[1] + b"}", type=Entry, dec_hook=read_fraction) if match else None
    if entry is None or encode_entry(entry) != line:
        first = (
            ", or the file is no privacy ledger: restore it, or name another file"
            if number == 1
            else ": restore the file"
        )
        raise LedgerDamaged(f"was altered{first}", number)
    return entry


def write_fraction(value: object) -> str:
    """Return a fraction as text: the encoding hook for msgspec."""
    if isinstance(value, Fraction):
        return str(value)
    raise NotImplementedError


def read_fraction(kind: type, value: object) -> Fraction:
    """Return the fraction in a text: the decoding hook for msgspec."""
    if kind is not Fraction or not isinstance(value, str) or not _FRACTION.fullmatch(value):
        raise ValueError("a variance is written as a fraction")
    try:
        return Fraction(value)
    except ZeroDivisionError:
        raise ValueError("a variance is written as a fraction") from None
