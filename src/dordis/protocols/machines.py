"""A protocol that sums, as a whole: the two machines and what others have to know of its messages.

Whoever writes another one puts it into a `Machines` of their own, which a configuration names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dordis.crypto.suite import Suite
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId, Message, ProtocolServer, Step
from dordis.protocols import secagg
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import ChunkOutput
from dordis.protocols.secagg.consent import Owner
from dordis.protocols.secagg.messages import REPLIES, Unmask


class Workflow(Protocol):
    """Steps in the order in which they run."""

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the steps."""
        ...


class SummingServer(Protocol):
    """The server's machine: a set-up once a round, then the chunks, which may be pipelined."""

    @property
    def setup(self) -> Workflow:
        """Return what comes first."""
        ...

    @property
    def chunks(self) -> Sequence[ProtocolServer[ChunkOutput]]:
        """Return the machine of every chunk."""
        ...


class SummingClient(Protocol):
    """A client's machine."""

    def handle(self, request: Message) -> Message:
        """Answer a request, or raise."""
        ...


class MakeServer(Protocol):
    """Make the server's machine of a round."""

    def __call__(
        self,
        parameters: Parameters,
        registry: Mapping[ClientId, bytes],
        proofs: Mapping[ClientId, bytes],
        *,
        suite: Suite,
    ) -> SummingServer:
        """Make it."""
        ...


class MakeClient(Protocol):
    """Make a client's machine of a round."""

    def __call__(
        self,
        me: ClientId,
        vector: Vector,
        *,
        owner: Owner | None,
        signing: bytes,
        registry: Mapping[ClientId, bytes],
        suite: Suite,
    ) -> SummingClient:
        """Make it."""
        ...


@dataclass(frozen=True)
class Machines:
    """A protocol: what makes its machines, the reply to each request, and the requests whose answers cost privacy.

    `hides_updates` says whether it keeps single updates from the server.
    """

    server: MakeServer
    client: MakeClient
    replies: Mapping[type[Message], type[Message]]
    disclosing: frozenset[type[Message]]
    hides_updates: bool = True


SECAGG = Machines(secagg.SecAggServer, secagg.SecAggClient, REPLIES, frozenset({Unmask}))
