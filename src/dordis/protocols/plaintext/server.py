"""The plaintext server: it adds the inputs up and collects the secrets that are due."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import ProtocolError
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId, Flow, Resource, Step
from dordis.protocols import parameters as rules
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.escrow import Releases
from dordis.protocols.plaintext.messages import Begin, Contribute, Contribution, Disclose, Disclosure, Joined
from dordis.protocols.replies import collect, ensure_enough
from dordis.protocols.summing import ChunkSum, SummingChunk, SummingServer, SummingSetup
from dordis.protocols.vector_backend import Accumulator

PLAIN_BITS = 32
"""Bits of a coordinate in a contribution, which is not packed."""


class PlaintextSetup(SummingSetup):
    """The set-up: it sends the parameters to all clients, once a round."""

    def __init__(self, parameters: CohortParameters, proofs: Mapping[ClientId, bytes]) -> None:
        self.parameters = parameters
        self._proofs = {int(u): proof for u, proof in sorted(proofs.items())}

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the one step."""
        return (Step(self.begin, Resource.CLIENT),)

    def begin(self) -> Flow:
        """Ask all clients to begin; those that answer are `ready`."""
        clients = self.parameters.clients
        replies = yield dict.fromkeys(clients, Begin(self.parameters, self._proofs))
        self.ready = tuple(collect(clients, Joined, replies, lambda u, reply: reply))
        ensure_enough(self.parameters, Begin.__name__, self.ready)


class PlaintextChunk(SummingChunk):
    """Sums one chunk; due secrets in `withheld` are not released, so that tests can compare two protocols."""

    def __init__(self, setup: PlaintextSetup, chunk: int, withheld: Releases) -> None:
        self.parameters, self.chunk = setup.parameters, chunk
        self._setup, self._withheld = setup, withheld
        self._total: Vector = np.zeros(0, np.uint32)
        self._released: dict[ClientId, Mapping[int, bytes]] = {}
        self.u3 = ()

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the two steps."""
        return Step(self.collect_inputs, Resource.NETWORK), Step(self.release_secrets, Resource.SERVER)

    def output(self) -> ChunkSum:
        """Return the sum, its survivors, and the secrets released for them."""
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
        """Collect the due secrets; those of a client that does not answer are not released."""
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
    """The plaintext server for one round; `withheld` names due secrets that are not released, by chunk."""

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
