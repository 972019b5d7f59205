"""The receipt of a round: the evidence about one round that server, clients and auditors keep.

It contains the agreed parameters, the survivors with the quorum's signatures, the noise planned and charged, the
epsilon spent so far, and the head of the privacy ledger after the round: a ledger that later lacks that line was cut.
Every receipt names the hash of the one before it, so that the last one stands for all.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from dordis import wire
from dordis.durable_files import write_atomically
from dordis.errors import LedgerDamaged
from dordis.ledger.charged_rounds import LedgerRound
from dordis.protocols.distributed_noise import ChunkOutput
from dordis.protocols.parameters import Parameters
from dordis.records.run_records import RoundRecord

FIRST = "0" * 64
"""Stands for the hash of the receipt before the first one."""


def receipt_name(index: int) -> str:
    """Return the name of the file of a round's receipt."""
    return f"{index:06d}.json"


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The receipt of a round; variances are by chunk, as fractions in squared integer units."""

    run: str
    index: int
    protocol: str
    parameters: str
    """The hash of the agreed parameters."""
    agreed: bytes
    """The agreed parameters, as they went over the wire."""
    model: str
    clients: tuple[int, ...]
    survivors: tuple[tuple[int, ...], ...]
    """U3 of every chunk."""
    signatures: tuple[dict[int, bytes], ...]
    """A quorum's signatures on U3 of every chunk; empty against a semi-honest server."""
    planned: tuple[str, ...]
    left: tuple[str, ...]
    charged: tuple[str, ...]
    epsilon: float | None
    """Largest epsilon spent by a client after the round; None if nothing is proved."""
    ledger: str
    """Hash of the ledger's last line after the round; empty without a ledger."""
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
        """Return the receipt of a finished round; `arrived` are its clients where no list U was fixed."""
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
        """Read a receipt in the one form in which it is written; raise LedgerDamaged for any other bytes."""
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
        """Return the hash by which the next receipt names this one, in hex."""
        return hashlib.sha256(b"dordis/v1/receipt" + self.to_bytes()).hexdigest()

    @property
    def file_name(self) -> str:
        """Return the name of its file, by the round's index."""
        return receipt_name(self.index)

    def save(self, directory: Path) -> None:
        """Write the receipt to its file in a directory."""
        directory.mkdir(exist_ok=True)
        write_atomically(directory / self.file_name, self.to_bytes())

    def agrees_with(self, charged: LedgerRound | None) -> bool:
        """Tell whether the ledger has the round with the same parameters, clients and dropouts."""
        if charged is None or (charged.charge.parameters, charged.charge.clients) != (self.parameters, self.clients):
            return False
        everyone = set(self.clients)
        lost = [tuple(sorted(everyone.difference(present))) for present in self.survivors]
        return lost == [outcome.dropped for outcome in charged.outcomes]

    def is_of(self, record: RoundRecord) -> bool:
        """Tell whether a record has the same clients and numbers of survivors."""
        return (self.clients, tuple(map(len, self.survivors))) == (record.clients, record.survivors)


def read_receipt_files(directory: Path) -> dict[int, Receipt]:
    """Return the receipts in a directory by index; raise LedgerDamaged for a damaged or misnamed one."""
    receipts = {}
    for path in sorted(directory.glob("*.json")):
        receipt = Receipt.from_bytes(path.read_bytes(), path.name)
        if path.name != receipt.file_name:
            raise LedgerDamaged(f"the receipt {path.name} is of another run or round: restore the right one")
        receipts[receipt.index] = receipt
    return receipts


def last_digest(directory: Path, open_round: int | None = None) -> str:
    """Return the hash that the next receipt in a directory names.

    `open_round` is the index of a round that a stopped process has not finished: if its receipt is there already, the
    resumed round writes the same one again, which must not name itself.
    """
    names = sorted(path for path in directory.glob("*.json") if open_round is None or int(path.stem) < open_round)
    return Receipt.from_bytes(names[-1].read_bytes(), names[-1].name).digest if names else FIRST


def check_chain(receipts: Mapping[int, Receipt]) -> None:
    """Every receipt names the one before it: none was replaced, inserted or left out before the last."""
    previous = FIRST
    for index, receipt in sorted(receipts.items()):
        if receipt.previous != previous:
            raise LedgerDamaged(
                f"the receipt of round index {index} does not follow the one before it: a receipt was altered, added "
                "or removed; restore the directory of receipts"
            )
        previous = receipt.digest
