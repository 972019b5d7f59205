"""The same sum with no masks at all: a template for authors of protocols, and the oracle that tests compare SecAgg to.

Clients send their noisy inputs in the clear and disclose the seeds that are due.  It protects nobody.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from dordis.errors import ProtocolError, TooManyDropouts
from dordis.kernels.ring import Vector
from dordis.privacy.noise import add_noise
from dordis.privacy.xnoise import Due
from dordis.protocol import (
    ClientId,
    ClientState,
    Flow,
    MemoryJournal,
    Message,
    On,
    ProtocolClient,
    ProtocolServer,
    Resource,
    Step,
)
from dordis.protocols import parameters as rules
from dordis.protocols.parameters import Parameters


class Begin(Message, frozen=True):
    """Set-up: these are the parameters."""

    parameters: Parameters


class Joined(Message, frozen=True):
    """I take part."""


class Contribute(Message, frozen=True):
    """Per chunk: send your noisy input."""

    chunk: int


class Contribution(Message, frozen=True):
    """The input with all its noise, four bytes a coordinate."""

    chunk: int
    vector: bytes


class Disclose(Message, frozen=True):
    """Per chunk: this is U3; disclose the seeds that are due."""

    chunk: int
    survivors: bytes


class Disclosure(Message, frozen=True):
    """The seeds that are due, by component."""

    chunk: int
    seeds: dict[int, bytes]


REPLIES: dict[type[Message], type[Message]] = {Begin: Joined, Contribute: Contribution, Disclose: Disclosure}


class Seeds(msgspec.Struct, frozen=True):
    """A client's noise seeds for one chunk."""

    base: tuple[bytes, ...]
    removable: tuple[bytes, ...]

    def __repr__(self) -> str:
        return "<Seeds>"


class PlaintextState(ClientState):
    """What the client remembers."""

    parameters: Parameters | None = None
    seeds: dict[int, Seeds] = msgspec.field(default_factory=dict)

    __repr__ = ClientState.__repr__


class PlaintextClient(ProtocolClient[PlaintextState]):
    """Answer with the noisy input; `seeds` may be given, so that two protocols can be run on the same noise."""

    def __init__(
        self,
        me: ClientId,
        vector: Vector,
        seeds: Mapping[int, Seeds] | None = None,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        super().__init__(PlaintextState(seeds=dict(seeds or {})), MemoryJournal())
        self.me = me
        self._vector = vector
        self._entropy = entropy

    @property
    def setup(self) -> Sequence[On[Any]]:
        """Return the one request of the set-up."""
        return (On(Begin, Joined, self.join),)

    @property
    def routine(self) -> Sequence[On[Any]]:
        """Return the two requests of every chunk."""
        return On(Contribute, Contribution, self.contribute), On(Disclose, Disclosure, self.disclose)

    @property
    def chunks(self) -> int:
        """Return m."""
        return len(self._parameters.chunks)

    @property
    def _parameters(self) -> Parameters:
        if self.state.parameters is None:
            raise ProtocolError("no round has begun")
        return self.state.parameters

    def join(self, request: Begin) -> Joined:
        """Accept the parameters and draw the seeds that were not given."""
        rules.check(request.parameters)
        self.state.parameters = request.parameters
        for chunk, plan in enumerate(request.parameters.plans):
            base, removable = ([self._entropy(32) for _ in part] for part in (plan.base, plan.removable))
            self.state.seeds.setdefault(chunk, Seeds(tuple(base), tuple(removable)))
        return Joined()

    def contribute(self, request: Contribute) -> Contribution:
        """Add the noise to the input."""
        plan, seeds = self._parameters.plans[request.chunk], self.state.seeds[request.chunk]
        y = np.array(self._vector[self._parameters.chunks[request.chunk]])
        for seed, variance in zip((*seeds.base, *seeds.removable), (*plan.base, *plan.removable), strict=True):
            add_noise(y, seed, variance)
        return Contribution(request.chunk, y.astype("<u4").tobytes())

    def disclose(self, request: Disclose) -> Disclosure:
        """Disclose the seeds that are due."""
        due = self._parameters.due(request.chunk, self._parameters.unpack(request.survivors))
        removable = self.state.seeds[request.chunk].removable
        return Disclosure(request.chunk, {k: removable[k] for k in due[self.me]})


class PlaintextServer(ProtocolServer[tuple[Vector, ...]]):
    """Add the inputs up and remove the noise that is due, except the components in `stayed` of each chunk."""

    def __init__(self, parameters: Parameters, stayed: Mapping[int, Due] | None = None) -> None:
        rules.check(parameters)
        self.parameters = parameters
        self._stayed = stayed or {}
        self._totals: dict[int, Vector] = {}
        self._survivors: dict[int, list[ClientId]] = {}

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the set-up and two steps for every chunk."""
        steps = [Step(self.begin, Resource.CLIENT)]
        for chunk in range(len(self.parameters.chunks)):
            steps.append(Step(partial(self.collect, chunk), Resource.NETWORK))
            steps.append(Step(partial(self.remove_noise, chunk), Resource.SERVER))
        return steps

    def output(self) -> tuple[Vector, ...]:
        """Return the sum of every chunk, modulo 2^b."""
        return tuple(total & np.uint32(2**self.parameters.bits - 1) for total in self._totals.values())

    def begin(self) -> Flow:
        """Send the parameters."""
        yield dict.fromkeys(self.parameters.clients, Begin(self.parameters))

    def collect(self, chunk: int) -> Flow:
        """Collect U3."""
        replies = yield dict.fromkeys(self.parameters.clients, Contribute(chunk))
        span = self.parameters.chunks[chunk]
        self._totals[chunk] = np.zeros(span.stop - span.start, np.uint32)
        self._survivors[chunk] = []
        for u, reply in replies:
            if isinstance(reply, Contribution):
                self._totals[chunk] += np.frombuffer(reply.vector, "<u4")
                self._survivors[chunk].append(u)
        dropped = len(self.parameters.clients) - len(self._survivors[chunk])
        if dropped > self.parameters.tolerance:
            raise TooManyDropouts(dropped, self.parameters.tolerance)

    def remove_noise(self, chunk: int) -> Flow:
        """Subtract what is due."""
        survivors = self._survivors[chunk]
        replies = yield dict.fromkeys(survivors, Disclose(chunk, self.parameters.pack(survivors)))
        for u, reply in replies:
            if isinstance(reply, Disclosure):
                for k, seed in reply.seeds.items():
                    if k not in self._stayed.get(chunk, {}).get(u, ()):
                        variance = self.parameters.plans[chunk].removable[k]
                        add_noise(self._totals[chunk], seed, variance, subtract=True)
