"""The SecAgg server: the set-up once a round, then the same stages for every chunk."""

from collections.abc import Mapping

from dordis.crypto.suite import DEFAULT, Suite
from dordis.protocol import ClientId
from dordis.protocols import parameters as rules
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.secagg.chunk import ChunkServer
from dordis.protocols.secagg.setup import SetupServer
from dordis.protocols.secagg.statements import Registry
from dordis.protocols.summing import SummingServer


class SecAggServer(SummingServer):
    """The SecAgg server for one round: set-up, then the chunks one after the other.

    `proofs` are the clients' proofs of selection.  With the `registry` the server detects forged signatures, which
    clients would refuse.  The `suite` is the same as the clients'.
    """

    def __init__(
        self,
        parameters: CohortParameters,
        registry: Registry | None = None,
        proofs: Mapping[ClientId, bytes] | None = None,
        suite: Suite = DEFAULT,
    ) -> None:
        rules.check_rules(parameters)
        self.setup: SetupServer = SetupServer(parameters, registry or {}, proofs or {}, suite)
        self.chunks: list[ChunkServer] = [ChunkServer(self.setup, chunk) for chunk in range(len(parameters.chunks))]
