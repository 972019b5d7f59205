"""The receipt of a round: what its clients may keep, to hold the server to what it said.

It repeats what they agreed on and what became of it, and names the head of the privacy ledger after the round: a
ledger that later lacks that line was cut.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dordis.federation.account import Round
from dordis.federation.durable import replace
from dordis.federation.records import RoundRecord
from dordis.protocols.distributed_noise import ChunkOutput
from dordis.protocols.parameters import Parameters


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happened in a round: `parameters` is their hash, variances are of every chunk, in squared integer units."""

    run: str
    index: int
    parameters: str
    model: str
    clients: tuple[int, ...]
    survivors: tuple[tuple[int, ...], ...]
    left: tuple[str, ...]
    charged: tuple[str, ...]
    ledger: str
    """Hash of the ledger's last line after the round; empty without a ledger."""

    @classmethod
    def of(cls, parameters: Parameters, outputs: Sequence[ChunkOutput], ledger: str) -> "Receipt":
        """Write the receipt of a finished round."""
        return cls(
            run=parameters.run.hex(),
            index=parameters.index,
            parameters=parameters.digest.hex(),
            model=parameters.model.hex(),
            clients=tuple(int(u) for u in parameters.clients),
            survivors=tuple(tuple(int(u) for u in output.survivors) for output in outputs),
            left=tuple(str(output.left) for output in outputs),
            charged=tuple(str(output.charged) for output in outputs),
            ledger=ledger,
        )

    @property
    def file_name(self) -> str:
        """Return the name of its file: the round's index."""
        return f"{self.index:06d}.json"

    def save(self, directory: Path) -> None:
        """Write the receipt as a file of its own, named by the round's index."""
        directory.mkdir(exist_ok=True)
        replace(directory / self.file_name, msgspec.json.encode(self) + b"\n")

    def agrees_with(self, charged: Round | None) -> bool:
        """Tell whether the ledger has the same round: its parameters, its clients, and who was lost."""
        if charged is None or (charged.charge.parameters, charged.charge.clients) != (self.parameters, self.clients):
            return False
        everyone = set(self.clients)
        lost = [tuple(sorted(everyone.difference(present))) for present in self.survivors]
        return lost == [fact.dropped for fact in charged.facts]

    def is_of(self, record: RoundRecord) -> bool:
        """Tell whether the records have the same round."""
        return (self.clients, tuple(map(len, self.survivors))) == (record.clients, record.survivors)
