"""Delivery of sums: the server sends the sum of each chunk to the clients, which decode it and put the chunks together.

Delivery does not depend on the summing protocol.  Delivered sums are not secret, clients' replies do not depend on
their data, and a client that drops out affects no other client.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

from dordis.errors import ProtocolError
from dordis.protocol import ClientId, ClientState, Flow, Message, On, ProtocolClient, ProtocolServer, Resource, Step
from dordis.protocols.encoded_sums import Aggregate, Assembly, DistributedDP
from dordis.protocols.noise_addition_and_removal import ChunkOutput
from dordis.protocols.parameters import Parameters
from dordis.protocols.summing import collect


class Received(Message, frozen=True):
    """The reply to `Dispatch`: the sum has arrived."""

    chunk: int


class Dispatch(Message, frozen=True):
    """Per chunk: receive the sum of `survivors` clients, as `DistributedDP.encode_delivered` returns it."""

    reply: ClassVar = Received
    bulk: ClassVar = "vector"
    chunk: int
    survivors: int
    vector: bytes


class Stored(Message, frozen=True):
    """The reply to `Store`: the sum of the chunk is decoded."""

    chunk: int


class Store(Message, frozen=True):
    """Per chunk: decode the sum that came with `Dispatch`."""

    reply: ClassVar = Stored
    chunk: int


class DeliveryServer(ProtocolServer[tuple[ClientId, ...]]):
    """The last two steps of a chunk: clients receive and decode its sum; the output is the clients that did both.

    `summed` returns the sum, and `receivers` the clients to send it to; neither is called before the sum is known.
    """

    def __init__(
        self,
        private: DistributedDP,
        chunk: int,
        summed: Callable[[], ChunkOutput],
        receivers: Callable[[], Collection[ClientId]],
    ) -> None:
        self._private, self.chunk = private, chunk
        self._summed, self._receivers = summed, receivers
        self.dispatched: Dispatch | None = None
        self.received: tuple[ClientId, ...] = ()
        self.stored: tuple[ClientId, ...] = ()

    @property
    def workflow(self) -> Sequence[Step]:
        return Step(self.dispatch, Resource.DOWNLINK), Step(self.store, Resource.CLIENT)

    def output(self) -> tuple[ClientId, ...]:
        return self.stored

    def dispatch(self) -> Flow:
        """Send the sum to all receivers."""
        receivers = self._receivers()
        if not receivers:
            return
        self.dispatched = self.publish()
        replies = yield dict.fromkeys(receivers, self.dispatched)
        self.received = tuple(collect(receivers, Received, replies, self._checked))

    def publish(self) -> Dispatch:
        """Return the message with the sum of the chunk, for receivers and for clients that ask for the sum later."""
        summed = self._summed()
        vector = self._private.encode_delivered(self.chunk, summed.total)
        return Dispatch(self.chunk, len(summed.survivors), vector)

    def store(self) -> Flow:
        """Ask the clients that received the sum to decode it."""
        if not self.received:
            return
        replies = yield dict.fromkeys(self.received, Store(self.chunk))
        self.stored = tuple(collect(self.received, Stored, replies, self._checked))

    def _checked(self, u: ClientId, reply: Received | Stored) -> None:
        if reply.chunk != self.chunk:
            raise ProtocolError("the reply is for another chunk")


class DeliveryClient(ProtocolClient[ClientState]):
    """A client's part of the delivery in one round; the sums of the chunks may arrive in any order."""

    def __init__(self, private: DistributedDP) -> None:
        super().__init__(ClientState())
        self._private = private
        self._received: dict[int, Dispatch] = {}
        self._assembly: Assembly | None = None
        self._aggregate: Aggregate | None = None

    @property
    def setup(self) -> Sequence[On[Any]]:
        return ()

    @property
    def routine(self) -> Sequence[On[Any]]:
        return On(Dispatch, self.receive), On(Store, self.store)

    @property
    def chunks(self) -> int:
        return len(self._private.parameters.chunks)

    @property
    def longest(self) -> int:
        """Return the size in bytes of the round's largest chunk sum, in the form that the server delivers."""
        return max(map(self._private.delivered_size, range(self.chunks)))

    @property
    def aggregate(self) -> Aggregate | None:
        """Return the decoded sum of the round and its mean, or None if a chunk is missing, or after `forget`."""
        if self._assembly is not None and len(self._assembly) == self.chunks:
            self._aggregate, self._assembly = self._assembly.aggregate(), None
        return self._aggregate

    def forget(self) -> None:
        """Drop the delivered sums, after the application has used them; repeated requests are still answered."""
        self._received.clear()
        self._assembly = self._aggregate = None

    def receive(self, request: Dispatch) -> Received:
        """Check the delivered sum of a chunk, and keep it until `store` decodes it."""
        check_counted(request.survivors, self._private.parameters)
        check_delivered(request, self._private)
        self._received[request.chunk] = request
        return Received(request.chunk)

    def store(self, request: Store) -> Stored:
        """Decode the received sum of a chunk."""
        received = self._received.pop(request.chunk)
        decoded = self._private.decode_delivered(request.chunk, received.vector, received.survivors)
        if self._assembly is None:
            self._assembly = Assembly(self._private)
        self._assembly.add(request.chunk, decoded)
        return Stored(request.chunk)


def check_counted(survivors: int, parameters: Parameters) -> None:
    """Raise ProtocolError unless `survivors`, the stated number of clients in the sum, is in n_min to n_max.

    A number below the true one would make the mean too large.
    """
    least, most = parameters.n_min, parameters.n_max
    if not least <= survivors <= most:
        raise ProtocolError(f"a sum of this round is over {least} to {most} clients, not {survivors}")


def check_delivered(request: Dispatch, private: DistributedDP) -> None:
    """Raise ProtocolError unless a delivered sum has the length of its chunk: a longer one would waste memory."""
    size = private.delivered_size(request.chunk)
    if len(request.vector) != size:
        raise ProtocolError(f"the sum of chunk {request.chunk} has {size} bytes, not {len(request.vector)}")
