"""The receipt of a round: the evidence about the round that server, clients and auditors keep.

A receipt has the agreed parameters, the survivors with the quorum's signatures, the noise planned and charged, the
epsilon spent so far, and the ledger's head: the hash of the ledger's last line after the round.  If the ledger no
longer has this line, lines were removed or altered.  Every receipt states the hash of the receipt before it, so that
the last receipt commits to all.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from dordis import wire
from dordis.durable_files import write_atomically
from dordis.errors import LedgerDamaged
from dordis.ledger.entries import LedgerRound
from dordis.protocols.noise_addition_and_removal import ChunkOutput
from dordis.protocols.parameters import Parameters
from dordis.records.run_records import RoundRecord

FIRST = "0" * 64
"""The value of `previous` in the first receipt of a run."""


def receipt_name(index: int) -> str:
    """Return the file name of the receipt of a round, from the round's index."""
    return f"{index:06d}.json"


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The receipt of a round.

    `planned`, `left` and `charged` are noise variances for the sum of every chunk, in squared integer units: the
    variance from which epsilon was planned, the variance of all noise in the sum, and the part that counts for privacy.
    """

    run: str
    index: int
    protocol: str
    parameters: str
    """The hash of the agreed parameters."""
    agreed: bytes
    """The agreed parameters, encoded as on the wire."""
    model: str
    clients: tuple[int, ...]
    survivors: tuple[tuple[int, ...], ...]
    """U3, the clients in the sum, of every chunk."""
    signatures: tuple[dict[int, bytes], ...]
    """A quorum's signatures on U3 of every chunk, by client; empty in semi-honest mode."""
    planned: tuple[str, ...]
    left: tuple[str, ...]
    charged: tuple[str, ...]
    epsilon: float | None
    """The largest epsilon spent by a client after the round; None if the run has no epsilon."""
    ledger: str
    """Hash of the ledger's last line after the round; empty if the run has no ledger."""
    previous: str
    """Hash of the receipt before this one in the run."""

    @classmethod
    def from_round(
        cls,
        parameters: Parameters,
        outputs: Sequence[ChunkOutput],
        protocol: str,
        epsilon: float | None,
        ledger: str,
        previous: str,
        arrived: Collection[int] = (),
    ) -> "Receipt":
        """Return the receipt of a finished round; `arrived` has the clients of an assisted round."""
        return cls(
            run=parameters.run.hex(),
            index=parameters.index,
            protocol=protocol,
            parameters=parameters.digest.hex(),
            agreed=wire.encode(parameters),
            model=parameters.model.hex(),
            clients=tuple(int(u) for u in parameters.clients or arrived),
            survivors=tuple(tuple(int(u) for u in output.survivors) for output in outputs),
            signatures=tuple({int(u): signed for u, signed in output.signatures.items()} for output in outputs),
            planned=tuple(parameters.variances[chunk] for chunk in range(len(outputs))),
            left=tuple(str(output.left) for output in outputs),
            charged=tuple(str(output.charged) for output in outputs),
            epsilon=epsilon,
            ledger=ledger,
            previous=previous,
        )

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> "Receipt":
        """Return the receipt in the content of a file; raise LedgerDamaged unless `to_bytes` gives the same content."""
        try:
            receipt = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            receipt = None
        if receipt is None or receipt.to_bytes() != data:
            raise LedgerDamaged(f"the receipt {name} is not what dordis wrote: restore it")
        return receipt

    def to_bytes(self) -> bytes:
        """Return the content of the receipt's file."""
        return msgspec.json.encode(self) + b"\n"

    @property
    def digest(self) -> str:
        """Return the hash of this receipt, in hex, which the next receipt states as `previous`."""
        return hashlib.sha256(b"dordis/v1/receipt" + self.to_bytes()).hexdigest()

    @property
    def file_name(self) -> str:
        """Return the name of the receipt's file."""
        return receipt_name(self.index)

    def save(self, directory: Path) -> None:
        """Write the receipt to its file in a directory."""
        directory.mkdir(exist_ok=True)
        write_atomically(directory / self.file_name, self.to_bytes())

    def agrees_with(self, charged: LedgerRound | None) -> bool:
        """Tell whether the ledger's round has this receipt's parameters, clients and dropouts; False for None."""
        if charged is None or (charged.charge.parameters, charged.charge.clients) != (self.parameters, self.clients):
            return False
        everyone = set(self.clients)
        lost = [tuple(sorted(everyone.difference(present))) for present in self.survivors]
        return lost == [outcome.dropped for outcome in charged.outcomes]

    def matches_record(self, record: RoundRecord) -> bool:
        """Tell whether the record of a round has this receipt's clients and numbers of survivors."""
        return (self.clients, tuple(map(len, self.survivors))) == (record.clients, record.survivors)


def read_receipt_files(directory: Path) -> dict[int, Receipt]:
    """Return the receipts in a directory by index; raise LedgerDamaged if one is damaged or has the wrong file name."""
    receipts = {}
    for path in sorted(directory.glob("*.json")):
        receipt = Receipt.from_bytes(path.read_bytes(), path.name)
        if path.name != receipt.file_name:
            raise LedgerDamaged(f"the receipt {path.name} is of another run or round: restore the right one")
        receipts[receipt.index] = receipt
    return receipts


def last_digest(directory: Path, open_round: int | None = None) -> str:
    """Return the hash of the last receipt in a directory, which the next receipt states; FIRST if there is none.

    `open_round` is the index of an unfinished round that is resumed.  A receipt of this round is ignored, because the
    resumed round writes it again.  Raise LedgerDamaged if a receipt is damaged or has the wrong file name.
    """
    receipts = read_receipt_files(directory)
    last = max((index for index in receipts if open_round is None or index < open_round), default=None)
    return FIRST if last is None else receipts[last].digest


def check_chain(receipts: Mapping[int, Receipt]) -> None:
    """Raise LedgerDamaged unless every receipt states the hash of the receipt before it; the first states `FIRST`."""
    previous = FIRST
    for index, receipt in sorted(receipts.items()):
        if receipt.previous != previous:
            raise LedgerDamaged(
                f"the receipt of round index {index} does not follow the one before it: a receipt was altered, added "
                "or removed; restore the directory of receipts"
            )
        previous = receipt.digest
