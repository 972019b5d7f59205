"""The plaintext server: it adds the inputs up and removes the noise that is due."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import ProtocolError
from dordis.kernels.ring import Vector
from dordis.privacy.xnoise import Due
from dordis.protocol import ClientId, Flow, Resource, Step
from dordis.protocols import parameters as rules
from dordis.protocols.collecting import collect, ensure_enough
from dordis.protocols.parameters import Parameters
from dordis.protocols.plaintext.messages import Begin, Contribute, Contribution, Disclose, Disclosure, Joined
from dordis.protocols.summing import ChunkOutput, SummingChunk, SummingServer, SummingSetup
from dordis.protocols.vectors import Accumulator

PLAIN_BITS = 32
"""Of a coordinate on the way: a contribution is not packed."""


class PlaintextSetup(SummingSetup):
    """Send the parameters, once a round."""

    def __init__(self, parameters: Parameters, proofs: Mapping[ClientId, bytes]) -> None:
        self.parameters = parameters
        self._proofs = {int(u): proof for u, proof in sorted(proofs.items())}

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the one step."""
        return (Step(self.begin, Resource.CLIENT),)

    def begin(self) -> Flow:
        """Collect those who take part."""
        clients = self.parameters.clients
        replies = yield dict.fromkeys(clients, Begin(self.parameters, self._proofs))
        self.ready = tuple(collect(clients, Joined, replies, lambda u, reply: reply))
        ensure_enough(self.parameters, Begin.__name__, self.ready)


class PlaintextChunk(SummingChunk):
    """Sum one chunk; the due components in `kept` are not removed, so that two protocols can be compared."""

    def __init__(self, setup: PlaintextSetup, chunk: int, kept: Due) -> None:
        self.parameters, self.chunk = setup.parameters, chunk
        self._setup, self._kept = setup, kept
        self._total: Vector = np.zeros(0, np.uint32)
        self._stayed: dict[int, tuple[int, ...]] = {}
        self.u3 = ()

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the two steps."""
        return Step(self.collect_inputs, Resource.NETWORK), Step(self.remove_noise, Resource.SERVER)

    def output(self) -> ChunkOutput:
        """Return the sum, modulo 2^b, and its noise."""
        total = self._total & np.uint32(2**self.parameters.bits - 1)
        return ChunkOutput.of(self.parameters, self.chunk, total, self.u3, self._stayed)

    def collect_inputs(self) -> Flow:
        """Collect U3."""
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

    def remove_noise(self) -> Flow:
        """Subtract what is due; the noise of whoever does not answer stays."""
        due = self.parameters.due(self.chunk, self.u3)
        replies = yield dict.fromkeys(self.u3, Disclose(self.chunk, self.parameters.pack(self.u3)))
        removable = self.parameters.plans[self.chunk].removable
        seeds = collect(self.u3, Disclosure, replies, lambda u, reply: self._checked_seeds(reply, due[u]))
        released = []
        for u, ks in due.items():
            removed = [k for k in ks if ClientId(u) in seeds and k not in self._kept.get(u, ())]
            released += [(seeds[ClientId(u)][k], removable[k]) for k in removed]
            if len(removed) < len(ks):
                self._stayed[u] = tuple(k for k in ks if k not in removed)
        self._setup.vectors.remove_noise(self._total, released)

    def _checked_seeds(self, reply: Disclosure, due: Sequence[int]) -> Mapping[int, bytes]:
        if reply.chunk != self.chunk or reply.seeds.keys() != set(due):
            raise ProtocolError("the seeds disclosed are not the due ones")
        return reply.seeds


class PlaintextServer(SummingServer):
    """A whole round; `kept` names due components that are left in the sum, by chunk."""

    def __init__(
        self,
        parameters: Parameters,
        registry: Mapping[ClientId, bytes] | None = None,
        proofs: Mapping[ClientId, bytes] | None = None,
        suite: Suite = DEFAULT,
        *,
        kept: Mapping[int, Due] | None = None,
    ) -> None:
        rules.check(parameters)
        self.setup: PlaintextSetup = PlaintextSetup(parameters, proofs or {})
        chunks, kept = range(len(parameters.chunks)), kept or {}
        self.chunks = [PlaintextChunk(self.setup, chunk, kept.get(chunk, {})) for chunk in chunks]
