"""The plaintext client: it adds its noise and sends the sum as it is."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import ProtocolError
from dordis.kernels.ring import Vector
from dordis.privacy.encoding import Entropy
from dordis.privacy.noise import add_noise
from dordis.protocol import ClientId, ClientState, Journal, On
from dordis.protocols import parameters as rules
from dordis.protocols.plaintext.messages import Begin, Contribute, Contribution, Disclose, Disclosure, Joined
from dordis.protocols.summing import SummingClient, SummingState


class NoiseSeeds(msgspec.Struct, frozen=True):
    """A client's noise seeds for one chunk."""

    base: tuple[bytes, ...]
    removable: tuple[bytes, ...]

    def __repr__(self) -> str:
        return "<NoiseSeeds>"


class PlaintextState(SummingState):
    """What the client remembers."""

    seeds: dict[int, NoiseSeeds] = msgspec.field(default_factory=dict)

    __repr__ = ClientState.__repr__


class PlaintextClient(SummingClient[PlaintextState]):
    """Answer with the noisy input; `seeds` may be given, so that two protocols can be run on the same noise."""

    def __init__(
        self,
        me: ClientId,
        vector: Vector,
        seeds: Mapping[int, NoiseSeeds] | None = None,
        *,
        signing: bytes = b"",
        registry: Mapping[ClientId, bytes] | None = None,
        suite: Suite = DEFAULT,
        journal: Journal | None = None,
        entropy: Entropy = secrets.token_bytes,
    ) -> None:
        super().__init__(me, vector, PlaintextState(seeds=dict(seeds or {})), journal, entropy)

    @property
    def setup(self) -> Sequence[On[Any]]:
        """Return the one request of the set-up."""
        return (On(Begin, self.join),)

    @property
    def routine(self) -> Sequence[On[Any]]:
        """Return the two requests of every chunk."""
        return On(Contribute, self.contribute), On(Disclose, self.disclose)

    def join(self, request: Begin) -> Joined:
        """Accept the parameters and draw the seeds that were not given."""
        rules.check(request.parameters)
        self.state.parameters = request.parameters
        for chunk, plan in enumerate(request.parameters.plans):
            base, removable = (tuple(self._entropy(32) for _ in part) for part in (plan.base, plan.removable))
            self.state.seeds.setdefault(chunk, NoiseSeeds(base, removable))
        return Joined()

    def contribute(self, request: Contribute) -> Contribution:
        """Add the noise to the input."""
        y = np.array(self._vector[self._parameters.chunks[request.chunk]])
        for component in self.noise(request.chunk):
            y += component
        return Contribution(request.chunk, y.astype("<u4").tobytes())

    def noise(self, chunk: int) -> Sequence[Vector]:
        """Return the noise of this client in a chunk, the base first."""
        plan, seeds, span = self._parameters.plans[chunk], self.state.seeds[chunk], self._parameters.chunks[chunk]
        components = []
        for seed, variance in zip((*seeds.base, *seeds.removable), (*plan.base, *plan.removable), strict=True):
            components.append(np.zeros(span.stop - span.start, np.uint32))
            add_noise(components[-1], seed, variance)
        return components

    def disclose(self, request: Disclose) -> Disclosure:
        """Disclose the seeds that are due."""
        due = self._parameters.due(request.chunk, self._parameters.unpack(request.survivors))
        if self.me not in due:
            raise ProtocolError("U3 is shown to a client that is not in it")
        removable = self.state.seeds[request.chunk].removable
        return Disclosure(request.chunk, {k: removable[k] for k in due[self.me]})
