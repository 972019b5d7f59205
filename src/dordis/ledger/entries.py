"""The entries of a privacy ledger: the lines of its file, the outcomes of rounds, and the charged rounds in memory.

A line is a JSON object.  Its field `previous` is the SHA-256 of the line before; in the first line it is the run id,
which is the hash of the manifest.  The last field of every line, `check`, is the SHA-256 of the rest of the line, so
that an alteration of the last line is detected too.

A round is paid for by the clients whose input may be in a sum that the server has unmasked:

- A reserved round is paid for by all of its clients U (if assisted, by all contributing clients), because the ledger
  does not know for which survivors U3 the server asked for a disclosure.
- A completed round is paid for by the clients in U3 of at least one chunk.  Each of them pays for all chunks.  The
  input of a client that is not in U3 stays hidden by the client's self-mask, even if its upload came late, because no
  honest client gives the server a share of that mask.

Dropout that depends on a client's data is outside the guarantee.
"""

import hashlib
import math
import re
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import msgspec

from dordis.errors import InputError, LedgerDamaged
from dordis.ledger.round_charge import Charge
from dordis.privacy import accounting
from dordis.privacy.accounting import ReleaseCost
from dordis.privacy.record_accounting import SampledEvents
from dordis.privacy.xnoise_components import removal_context
from dordis.protocols.noise_addition_and_removal import ChunkOutput
from dordis.protocols.parameters import INDEX_BYTES

_FRACTION = re.compile(r"[0-9]{1,40}(/[0-9]{1,40})?")
_LINE = re.compile(rb'(\{[^\n]*),"check":"([0-9a-f]{64})"\}\n')


class ChunkOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a chunk: the clients that dropped out, and two variances of the noise in its sum.

    `left` is the variance of all noise in the sum; `charged` is the part that counts for privacy.
    """

    dropped: tuple[int, ...]
    left: Fraction
    charged: Fraction


def outcome_from_output(charge: Charge, outcome: ChunkOutput) -> ChunkOutcome:
    """Return the outcome of a chunk from `outcome`, the protocol's output; raise InputError for unknown survivors."""
    survivors = {int(u) for u in outcome.survivors}
    if not survivors <= set(charge.clients):
        raise InputError(f"a survivor of round {charge.index} is not among its clients")
    dropped = tuple(u for u in charge.clients if u not in survivors)
    if (plan := charge.noise_added_by_clients) is None:
        return ChunkOutcome(dropped, outcome.left, outcome.charged)
    return ChunkOutcome(
        dropped,
        outcome.left + plan.variance_left(survivors, b""),
        outcome.charged + plan.charged_variance(survivors, b""),
    )


@dataclass(frozen=True)
class RunCharge:
    """The cost of a whole run for each client.

    `theta_squared` is the squared parameter of theta-GDP (docs/accounting.md); `failure` bounds the chance that any
    round of the run has an insecure graph or more colluders than its noise withstands.
    """

    label: str
    theta_squared: float
    failure: Fraction

    @property
    def cost(self) -> ReleaseCost:
        """Return the cost of the run, stated as the cost of one Gaussian release with the same theta^2."""
        return ReleaseCost(accounting.Gaussian(1 / math.sqrt(self.theta_squared)), 0.0)


class Opened(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="opened"):
    """The first line of a ledger, with the run id in `previous`, and the run's budget."""

    previous: str
    delta: float
    budget: float | None
    format: Literal["dordis ledger 2"] = "dordis ledger 2"
    records: SampledEvents | msgspec.UnsetType = msgspec.UNSET
    """The planned events of one record, if records are the unit of privacy."""
    accounting: Literal["paper"] | msgspec.UnsetType = msgspec.UNSET
    """`paper` for the paper's accounting: every client pays for every round, and Renyi divergences are added up."""


class Counted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="counted"):
    """A line with the cost that owners may count even if the round fails.

    It is written before upload requests are sent or, in assisted rounds, before a contribution is acknowledged.

    `cost` is theta^2, the squared parameter of theta-GDP (docs/accounting.md), or None if owners count no cost.
    `distance` is the total variation distance between the noise that is drawn and the noise that is analysed.
    """

    previous: str
    index: int
    clients: tuple[int, ...]
    cost: float | None
    distance: float


class Reserved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="reserved"):
    """A line that charges a round at the least noise that may be left, written to disk before any disclosure."""

    previous: str
    charge: Charge


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="refused"):
    """A line that says that a round would exceed the budget; it is the last line if the budget ended the run."""

    previous: str
    charge: Charge


class Completed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="completed"):
    """A line that says that a round has an output; the outcomes of its chunks replace its `Reserved` charge."""

    previous: str
    index: int
    outcomes: tuple[ChunkOutcome, ...] = msgspec.field(name="facts")


class RunCharged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="run"):
    """A line that charges another run over the same data, as a whole, to every client.

    A later line about the same run replaces this line.
    """

    previous: str
    run: str
    label: str
    theta_squared: float
    failure: Fraction


class Succeeded(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="succeeded"):
    """The last line of a ledger that run `run` continues: earlier spending counts in the new run's `budget`."""

    previous: str
    run: str
    delta: float
    budget: float | None


Entry = Opened | Counted | Reserved | Refused | Completed | RunCharged | Succeeded


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as a line of the file, whose last field, `check`, is the hash of the rest of the line."""
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


@dataclass(frozen=True)
class LedgerRound:
    """A charged round: completed if it has the outcomes of its chunks, otherwise reserved."""

    charge: Charge
    outcomes: tuple[ChunkOutcome, ...] = ()

    @property
    def state(self) -> str:
        """Return `completed` or `reserved`."""
        return "completed" if self.outcomes else "reserved"

    @property
    def payers(self) -> tuple[int, ...]:
        """Return the clients that pay for the round: all clients whose input may be in an unmasked sum."""
        if not self.outcomes:
            return self.charge.clients
        absent = set(self.charge.clients).intersection(*(outcome.dropped for outcome in self.outcomes))
        return tuple(u for u in self.charge.clients if u not in absent)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=write_fraction)
_DECODER = msgspec.msgpack.Decoder(LedgerRound, dec_hook=read_fraction)


class ChargedRounds(MutableMapping[int, LedgerRound]):
    """Charged rounds by index; a completed round is stored in encoded form, and decoded at each look-up.

    Servers run for months, and an encoded round takes a tenth of the memory of a decoded one.
    """

    def __init__(self) -> None:
        self._rounds: dict[int, LedgerRound | bytes] = {}
        self.completed = 0
        """The number of completed rounds."""

    def __getitem__(self, index: int) -> LedgerRound:
        known = self._rounds[index]
        return _DECODER.decode(known) if isinstance(known, bytes) else known

    def __setitem__(self, index: int, charged: LedgerRound) -> None:
        is_completed = bool(charged.outcomes)
        self.completed += is_completed - isinstance(self._rounds.get(index), bytes)
        self._rounds[index] = _ENCODER.encode(charged) if is_completed else charged

    def __delitem__(self, index: int) -> None:
        self.completed -= isinstance(self._rounds.pop(index), bytes)

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over the indices, in the order of the charges."""
        return iter(self._rounds)

    def __len__(self) -> int:
        return len(self._rounds)

    def __contains__(self, index: object) -> bool:
        """Tell whether the round with this index was charged, without decoding it."""
        return index in self._rounds


def check_known_dropouts(charge: Charge, chunk: int, outcome: ChunkOutcome) -> None:
    """Raise InputError if a chunk was charged with a known number of dropouts, and its outcome has another number."""
    lost = charge.largest - len(charge.clients) + len(outcome.dropped)
    if charge.dropped and charge.dropped[chunk] not in (None, lost):
        raise InputError(f"chunk {chunk} was charged for {charge.dropped[chunk]} dropouts and has {lost}")


def check_outcome(charge: Charge, run: bytes, chunk: int, outcome: ChunkOutcome) -> None:
    """Raise InputError unless the variances of a chunk follow from its noise plan and its survivors.

    The variance `left` may be larger than plan and survivors give, because some excess noise could not be removed.
    """
    gone, plan = set(outcome.dropped), charge.plans[chunk]
    survivors = [u for u in charge.clients if u not in gone]
    if len(survivors) + len(outcome.dropped) != len(charge.clients) or list(outcome.dropped) != sorted(gone):
        raise InputError(f"the dropouts of chunk {chunk} are not distinct clients of the round in ascending order")
    named = removal_context(run + charge.index.to_bytes(INDEX_BYTES, "big"), chunk, bytes.fromhex(charge.parameters))
    if outcome.charged != plan.charged_variance(survivors, named):
        raise InputError(f"the variance charged to chunk {chunk} is not the one that its survivors give")
    if outcome.left < plan.variance_left(survivors, named):
        raise InputError(f"the variance left in chunk {chunk} is less than the one that its survivors give")
