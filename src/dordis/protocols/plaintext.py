"""The plaintext protocol: a template for authors of protocols, and an oracle for tests of SecAgg.

Clients send their inputs without masks.  Then the survivors disclose those of their deposited secrets that are *due*:
the rule of the escrow (`protocols.escrow`) releases them.  The protocol protects nobody.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np

from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import ProtocolError
from dordis.kernels.ring import Vector
from dordis.privacy.encoding import Entropy
from dordis.protocol import ClientId, Flow, Journal, Message, On, Resource, Step
from dordis.protocols import parameters as rules
from dordis.protocols.cohort import CohortOpening, CohortParameters, CohortState, agree_with_cohort, ensure_enough
from dordis.protocols.escrow import IssuedSecrets, Releases, draw_secrets
from dordis.protocols.parameters import SEMI_HONEST
from dordis.protocols.summing import (
    ChunkSum,
    Leaving,
    SumInput,
    SummingChunk,
    SummingClient,
    SummingProtocol,
    SummingServer,
    SummingSetup,
    collect,
    require_parameters,
)
from dordis.protocols.vector_backend import Accumulator


class Joined(Message, frozen=True):
    """The reply to `Begin`: the client takes part."""


class Begin(CohortOpening, frozen=True):
    """Set-up: check the parameters and take part."""

    reply: ClassVar = Joined


class Contribution(Message, frozen=True):
    """A client's input to a chunk, four bytes for each coordinate."""

    bulk: ClassVar = "vector"
    chunk: int
    vector: bytes


class Contribute(Message, frozen=True):
    """Per chunk: send your input."""

    reply: ClassVar = Contribution
    uploads: ClassVar = True
    chunk: int


class Disclosure(Message, frozen=True):
    """Those of the client's deposited secrets that the escrow's rule releases, by index."""

    chunk: int
    seeds: dict[int, bytes]


class Disclose(Message, frozen=True):
    """Per chunk: disclose those of your deposited secrets that the escrow's rule releases for U3, the survivors."""

    reply: ClassVar = Disclosure
    discloses: ClassVar = True
    chunk: int
    survivors: bytes


class PlaintextState(CohortState):
    """The state of a plaintext client."""

    issued: dict[int, IssuedSecrets] = msgspec.field(default_factory=dict)


class PlaintextClient(SummingClient[PlaintextState]):
    """A client that sends its input unmasked.

    `issued` has the client's private and deposited secrets (`Escrow`) by chunk.  Only tests pass it; `join` draws the
    secrets of all other chunks.
    """

    def __init__(
        self,
        me: ClientId,
        given: SumInput,
        issued: Mapping[int, IssuedSecrets] | None = None,
        *,
        signing: bytes = b"",
        registry: Mapping[ClientId, bytes] | None = None,
        suite: Suite = DEFAULT,
        journal: Journal | None = None,
        entropy: Entropy = secrets.token_bytes,
    ) -> None:
        super().__init__(me, given, PlaintextState(issued=dict(issued or {})), journal, entropy)

    @property
    def setup(self) -> Sequence[On[Any]]:
        return (On(Begin, self.join),)

    @property
    def routine(self) -> Sequence[On[Any]]:
        return On(Contribute, self.contribute), On(Disclose, self.disclose)

    @property
    def _parameters(self) -> CohortParameters:
        return require_parameters(self.state.parameters)

    def join(self, request: Begin) -> Joined:
        """Check the parameters, and draw the secrets of every chunk for which no `issued` secrets were given."""
        rules.check_rules(request.parameters)
        self.input.check(request.parameters)
        self.state.parameters = request.parameters
        for chunk in range(self.chunks):
            drawn = draw_secrets(request.parameters.escrow(chunk), self._entropy)
            self.state.issued.setdefault(chunk, drawn)
        return Joined()

    def contribute(self, request: Contribute) -> Contribution:
        """Return this client's input to a chunk."""
        given = self.input.chunk(self._parameters, request.chunk, self.issued(request.chunk))
        return Contribution(request.chunk, given.astype("<u4", copy=False).tobytes())

    def issued(self, chunk: int) -> IssuedSecrets:
        return self.state.issued[chunk]

    def disclose(self, request: Disclose) -> Disclosure:
        """Return those of this client's deposited secrets that the server receives for U3 (`Escrow.releases`).

        Raise ProtocolError if U3 lacks this client.
        """
        survivors = self._parameters.unpack(request.survivors)
        due = self._parameters.escrow(request.chunk).releases(survivors)
        if self.me not in due:
            raise ProtocolError("U3 is shown to a client that is not in it")
        deposited = self.issued(request.chunk).deposited
        return Disclosure(request.chunk, {k: deposited[k] for k in due[self.me]})


PLAIN_BITS = 32
"""Bits of a coordinate in a contribution, which is not packed."""


class PlaintextSetup(SummingSetup):
    """The server's set-up, once a round: it sends the parameters to all clients."""

    def __init__(self, parameters: CohortParameters, proofs: Mapping[ClientId, bytes]) -> None:
        self.parameters = parameters
        self._proofs = {int(u): proof for u, proof in sorted(proofs.items())}

    @property
    def workflow(self) -> Sequence[Step]:
        return (Step(self.begin, Resource.CLIENT),)

    def begin(self) -> Flow:
        """Ask all clients to begin; those that answer are `ready`."""
        clients = self.parameters.clients
        replies = yield dict.fromkeys(clients, Begin(self.parameters, self._proofs))
        self.ready = tuple(collect(clients, Joined, replies, lambda u, reply: reply))
        ensure_enough(self.parameters, Begin.__name__, self.ready)


class PlaintextChunk(SummingChunk):
    """The server's part in one chunk.

    The server never receives the secrets in `withheld`, although the escrow's rule releases them.  So a test can
    compare the sum with that of a protocol in which the same secrets could not be recovered.
    """

    def __init__(self, setup: PlaintextSetup, chunk: int, withheld: Releases) -> None:
        self.parameters, self.chunk = setup.parameters, chunk
        self._setup, self._withheld = setup, withheld
        self._total: Vector = np.zeros(0, np.uint32)
        self._released: dict[ClientId, Mapping[int, bytes]] = {}
        self.u3 = ()

    @property
    def workflow(self) -> Sequence[Step]:
        return Step(self.collect_inputs, Resource.NETWORK), Step(self.release_secrets, Resource.SERVER)

    def output(self) -> ChunkSum:
        return ChunkSum(self._total, self.u3, self._released)

    def collect_inputs(self) -> Flow:
        """Add up the contributions; their senders are the survivors, U3."""
        replies = yield dict.fromkeys(self._setup.ready, Contribute(self.chunk))
        span = self.parameters.chunks[self.chunk]
        inputs = self._setup.vectors.accumulator(self.chunk, span.stop - span.start, PLAIN_BITS)
        collect(self._setup.ready, Contribution, replies, partial(self._add, inputs))
        self._total, summed = inputs.close()
        self.u3 = tuple(sorted(summed))
        ensure_enough(self.parameters, Contribute.__name__, self.u3)

    def _add(self, inputs: Accumulator, u: ClientId, reply: Contribution) -> None:
        if reply.chunk != self.chunk:
            raise ProtocolError("the contribution is for another chunk")
        inputs.add(u, reply.vector)

    def release_secrets(self) -> Flow:
        """Ask the survivors for their secrets that are due for release (`Escrow.releases`); some may not answer."""
        due = self.parameters.escrow(self.chunk).releases(self.u3)
        replies = yield dict.fromkeys(self.u3, Disclose(self.chunk, self.parameters.pack(self.u3)))
        told = collect(self.u3, Disclosure, replies, lambda u, reply: self._checked_secrets(reply, due[u]))
        withheld = self._withheld
        self._released = {u: {k: s for k, s in own.items() if k not in withheld.get(u, ())} for u, own in told.items()}

    def _checked_secrets(self, reply: Disclosure, due: Sequence[int]) -> Mapping[int, bytes]:
        if reply.chunk != self.chunk or reply.seeds.keys() != set(due):
            raise ProtocolError("the secrets disclosed are not the due ones")
        return reply.seeds


class PlaintextServer(SummingServer):
    """The plaintext server for one round; tests pass in `withheld`, by chunk, secrets that it must not release."""

    def __init__(
        self,
        parameters: CohortParameters,
        registry: Mapping[ClientId, bytes] | None = None,
        proofs: Mapping[ClientId, bytes] | None = None,
        suite: Suite = DEFAULT,
        *,
        withheld: Mapping[int, Releases] | None = None,
    ) -> None:
        rules.check_rules(parameters)
        self.setup: PlaintextSetup = PlaintextSetup(parameters, proofs or {})
        chunks, withheld = range(len(parameters.chunks)), withheld or {}
        self.chunks = [PlaintextChunk(self.setup, chunk, withheld.get(chunk, {})) for chunk in chunks]


REQUESTS = (Begin, Contribute, Disclose)
_BEGIN, _CONTRIBUTE, _DISCLOSE = (request.__name__ for request in REQUESTS)


@dataclass(frozen=True)
class PlaintextPrediction:
    """The outcome of one plaintext round; `leaving` has, for each dropout, the request at which it drops out."""

    parameters: CohortParameters
    leaving: Leaving

    def survivors(self) -> tuple[ClientId, ...]:
        """Return the survivors, U3; raise if too few clients answer the first request."""
        ensure_enough(self.parameters, _BEGIN, self._answering(_BEGIN))
        return self._answering(_BEGIN, _CONTRIBUTE)

    def check_before_disclosure(self) -> None:
        """Raise if too few clients contributed."""
        ensure_enough(self.parameters, _CONTRIBUTE, self._answering(_BEGIN, _CONTRIBUTE))

    def check_after_disclosure(self) -> None:
        """Raise nothing: the round goes on without the secrets that clients do not disclose."""

    def unreleased(self, due: Releases) -> Releases:
        """Return those secrets in `due` whose owner leaves before it discloses them."""
        return {u: ks for u, ks in due.items() if ks and self.leaving.get(ClientId(u)) == _DISCLOSE}

    def _answering(self, *stages: str) -> tuple[ClientId, ...]:
        return tuple(u for u in self.parameters.clients if self.leaving.get(u) not in stages)


PLAINTEXT = SummingProtocol(
    "plaintext",
    PlaintextServer,
    PlaintextClient,
    REQUESTS,
    PlaintextPrediction,
    CohortParameters,
    agree_with_cohort,
    modes=frozenset({SEMI_HONEST}),
    hides_updates=False,
)
