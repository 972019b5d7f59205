"""What an auditor knows of a round that it has run: the inputs, the noise of the colluders, and so the noise itself."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dordis.crypto.suite import Suite
from dordis.errors import InputError
from dordis.kernels.ring import Vector
from dordis.privacy.noise import SKELLAM, NoiseLaw
from dordis.protocol import ClientId
from dordis.protocols.distributed_noise import ChunkOutput, client_noise
from dordis.protocols.escrow import IssuedSecrets
from dordis.protocols.parameters import Parameters
from dordis.protocols.summing import SumInput, SummingClient, SummingProtocol, SummingServer


class Witness:
    """Stand by a protocol: note the parameters and inputs of every round, and what the colluders add to it.

    `protocol` is the one that it was given, machines and messages unchanged.  Pass `watch` to the round, so that the
    colluders are asked while they still know their noise.
    """

    def __init__(self, protocol: SummingProtocol, colluders: Collection[ClientId], law: NoiseLaw = SKELLAM) -> None:
        self._protocol, self._colluders, self._law = protocol, frozenset(colluders), law
        self.protocol = replace(protocol, server=self._server, client=self._client)
        self._upload = protocol.stages[protocol.upload]
        self._parameters: Parameters | None = None
        self._inputs: dict[ClientId, Vector] = {}
        self._machines: dict[ClientId, SummingClient[Any]] = {}
        self._noise: dict[ClientId, list[Sequence[Vector]]] = {}

    def _server(
        self,
        parameters: Parameters,
        registry: Mapping[ClientId, bytes],
        proofs: Mapping[ClientId, bytes],
        suite: Suite,
    ) -> SummingServer:
        self._parameters = parameters
        self._inputs, self._machines, self._noise = {}, {}, {}
        return self._protocol.server(parameters, registry, proofs, suite)

    def _client(self, me: ClientId, given: SumInput, **options: Any) -> SummingClient[Any]:
        machine = self._protocol.client(me, given, **options)
        self._inputs[me] = given.vector.copy()
        if me in self._colluders:
            self._machines[me] = machine
        return machine

    def watch(self, stage: str) -> None:
        """Ask the colluders for their noise when uploads are about to be collected."""
        if stage == self._upload and not self._noise:
            chunks = range(len(self.parameters.chunks))
            issued = {u: machine.issued for u, machine in self._machines.items()}
            self._noise = {u: [self._drawn(k, told(k)) for k in chunks] for u, told in issued.items()}

    def _drawn(self, chunk: int, issued: IssuedSecrets) -> Sequence[Vector]:
        return client_noise(self.parameters, chunk, issued, self._law)

    @property
    def parameters(self) -> Parameters:
        """Return the parameters of the last round."""
        if self._parameters is None:
            raise InputError("no round has begun")
        return self._parameters

    def see(self, chunk: int, output: ChunkOutput) -> "SeenChunk":
        """Take the inputs off the sum of a chunk, and then what the colluders know of the rest."""
        span = self.parameters.chunks[chunk]
        inputs = (self._inputs[u][span] for u in output.survivors)
        known = np.zeros(span.stop - span.start, np.uint32)
        for u in self._noise.keys() & set(output.survivors):
            for part in self._kept(chunk, u, output):
                known += part
        added = output.total - sum(inputs, np.zeros_like(known))
        ring = np.uint32(2**self.parameters.bits - 1)
        return SeenChunk(replace(output, total=(output.total - known) & ring), added & ring, (added - known) & ring)

    def _kept(self, chunk: int, u: ClientId, output: ChunkOutput) -> Sequence[Vector]:
        """Return the components of a colluder's noise that are in the sum."""
        removed = set(self.parameters.due(chunk, output.survivors)[u]) - set(output.stayed.get(u, ()))
        base = len(self.parameters.plans[chunk].base)
        return [part for place, part in enumerate(self._noise[u][chunk]) if place - base not in removed]


@dataclass(frozen=True, eq=False)
class SeenChunk:
    """A chunk as the colluders see it, without their noise, the noise of all, and the noise that they do not know."""

    output: ChunkOutput
    noise: Vector
    hidden: Vector
