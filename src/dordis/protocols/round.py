"""A whole round of distributed DP: secure aggregation, then decoding and delivery, chunk by chunk.

Both sides are put together from parts that do not know of each other: the steps of one follow those of the other.
"""

from collections.abc import Callable, Collection, Sequence

from dordis.errors import InputError
from dordis.protocol import ClientId, Flow, Message, ProtocolServer, Resource, Step
from dordis.protocols import delivery
from dordis.protocols.delivery import DeliveryClient, DeliveryServer
from dordis.protocols.distributed_dp import Aggregate, DecodedChunk, DistributedDP, check_by_chunk
from dordis.protocols.secagg import ChunkOutput, SecAggClient, SecAggServer, messages
from dordis.protocols.secagg.chunk import ChunkServer

REPLIES: dict[type[Message], type[Message]] = {**messages.REPLIES, **delivery.REPLIES}
"""Which reply answers which request."""


class RoundChunk(ProtocolServer[ChunkOutput]):
    """One chunk: the paper's five stages."""

    def __init__(
        self, summing: ChunkServer, private: DistributedDP, receivers: Callable[[], Collection[ClientId]]
    ) -> None:
        self.chunk = summing.chunk
        self.summing, self._private = summing, private
        self.delivery = DeliveryServer(summing.parameters, summing.chunk, summing.output, receivers)
        self._decoded: DecodedChunk | None = None

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the steps that make the sum, then those that use it."""
        return *self.summing.workflow, Step(self.decode, Resource.SERVER), *self.delivery.workflow

    def output(self) -> ChunkOutput:
        """Return the sum and its noise."""
        return self.summing.output()

    def decode(self) -> Flow | None:
        """Turn the sum into real units."""
        summed = self.output()
        self._decoded = self._private.decode_chunk(self.chunk, summed.total, len(summed.survivors))
        return None

    @property
    def decoded(self) -> DecodedChunk:
        """Return the sum in real units."""
        if self._decoded is None:
            raise InputError(f"chunk {self.chunk} is not decoded yet")
        return self._decoded


class RoundServer(ProtocolServer[tuple[ChunkOutput, ...]]):
    """The set-up of secure aggregation, then every chunk from its masked inputs to its delivery.

    The sums go to everyone who completed the set-up, or to the `receivers` that are named: where clients are simulated
    and their application is called directly, to nobody.
    """

    def __init__(
        self, summing: SecAggServer, private: DistributedDP, receivers: Collection[ClientId] | None = None
    ) -> None:
        if private.parameters != summing.setup.parameters:
            raise InputError("the sum and its decoding are for different parameters")
        check_by_chunk(private.mechanism)
        self._private = private
        self.setup = summing.setup
        self.chunks = [RoundChunk(chunk, private, lambda: self._receivers(receivers)) for chunk in summing.chunks]

    def _receivers(self, named: Collection[ClientId] | None) -> Collection[ClientId]:
        return self.setup.ready if named is None else named

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the steps of the set-up and of every chunk."""
        return [*self.setup.workflow, *(step for chunk in self.chunks for step in chunk.workflow)]

    def output(self) -> tuple[ChunkOutput, ...]:
        """Return the output of every chunk."""
        return tuple(chunk.output() for chunk in self.chunks)

    def aggregate(self) -> Aggregate:
        """Return the decoded sum and its mean, once every chunk is decoded; stripes are undone here."""
        return self._private.assemble([chunk.decoded for chunk in self.chunks])


class RoundClient:
    """One client in a whole round: each request goes to the machine that knows its kind; if one leaves, so does all."""

    def __init__(self, summing: SecAggClient, delivering: DeliveryClient) -> None:
        self.summing, self.delivering = summing, delivering

    @property
    def aggregate(self) -> Aggregate | None:
        """Return the decoded sum of the round and its mean, or None as long as a chunk is missing."""
        return self.delivering.aggregate

    def handle(self, request: Message) -> Message:
        """Answer a request, or leave the round."""
        machine = self.delivering if type(request) in delivery.REPLIES else self.summing
        answered = False
        try:
            reply = machine.handle(request)
            answered = True
            return reply
        finally:
            if not answered:
                self.close()

    def close(self) -> None:
        """Leave the round, whether it ended well or not; read the aggregate before."""
        self.summing.close()
        self.delivering.close()
