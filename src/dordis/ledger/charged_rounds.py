"""The charged rounds of a ledger in memory; completed ones are encoded, because servers run for months."""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

import msgspec

from dordis.ledger.entries import read_fraction, write_fraction
from dordis.ledger.round_charge import Charge, ChunkOutcome


@dataclass(frozen=True)
class LedgerRound:
    """A charged round: reserved, or completed when every chunk has an outcome."""

    charge: Charge
    outcomes: tuple[ChunkOutcome, ...] = ()

    @property
    def state(self) -> str:
        """Return `completed` or `reserved`."""
        return "completed" if self.outcomes else "reserved"

    @property
    def payers(self) -> tuple[int, ...]:
        """Return the clients that pay: those whose input may be in an opened sum."""
        if not self.outcomes:
            return self.charge.clients
        absent = set(self.charge.clients).intersection(*(outcome.dropped for outcome in self.outcomes))
        return tuple(u for u in self.charge.clients if u not in absent)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=write_fraction)
_DECODER = msgspec.msgpack.Decoder(LedgerRound, dec_hook=read_fraction)


class ChargedRounds(MutableMapping[int, LedgerRound]):
    """Charged rounds by index; a completed round is stored encoded and decoded at look-up.

    An encoded round takes a tenth of the memory of the decoded one with its caches.
    """

    def __init__(self) -> None:
        self._rounds: dict[int, LedgerRound | bytes] = {}
        self.completed = 0
        """The number of completed rounds."""

    def __getitem__(self, index: int) -> LedgerRound:
        """Return the round with this index."""
        known = self._rounds[index]
        return _DECODER.decode(known) if isinstance(known, bytes) else known

    def __setitem__(self, index: int, charged: LedgerRound) -> None:
        """Add or replace a round."""
        is_completed = bool(charged.outcomes)
        self.completed += is_completed - isinstance(self._rounds.get(index), bytes)
        self._rounds[index] = _ENCODER.encode(charged) if is_completed else charged

    def __delitem__(self, index: int) -> None:
        """Remove a round."""
        self.completed -= isinstance(self._rounds.pop(index), bytes)

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over the indices, in the order of the charges."""
        return iter(self._rounds)

    def __len__(self) -> int:
        """Return the number of rounds."""
        return len(self._rounds)

    def __contains__(self, index: object) -> bool:
        """Tell whether the round with this index was charged, without decoding it."""
        return index in self._rounds
