"""The steps of a chunk, from the server that runs rounds."""

from collections.abc import Sequence

from dordis.protocol import Step
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.secagg import SecAggServer
from dordis.rounds.engine import RoundServer
from reproduce.costs_measured import SmallRound


def chunk_steps() -> Sequence[Step]:
    """Return the steps of one chunk of a round of SecAgg."""
    small = SmallRound(6, 13, 1, 1)
    private = DistributedDP(small.parameters, small.mechanism)
    return RoundServer(SecAggServer(small.parameters), private).chunks[0].workflow
