"""The receipt of a round: what its clients may keep, to hold the server to what it said.

It repeats what they agreed on and what became of it, and names the head of the privacy ledger after the round: a
ledger that later lacks that line was cut.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dordis.federation.durable import replace
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import ChunkOutput


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

    def save(self, directory: Path) -> None:
        """Write the receipt as a file of its own, named by the round's index."""
        directory.mkdir(exist_ok=True)
        replace(directory / f"{self.index:06d}.json", msgspec.json.encode(self) + b"\n")
