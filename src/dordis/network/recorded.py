"""An exchange that keeps what every stage came to: one that is over is not asked again after a restart."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from dordis import wire
from dordis.errors import InputError
from dordis.kernels.packing import pack, packed_size
from dordis.network.exchange import NetworkExchange
from dordis.network.state import Closed, ServerState, Stage
from dordis.protocol import SETUP, ClientId, Garbled, Message, Replies, Requests, reply_to
from dordis.protocols.parameters import Parameters
from dordis.rounds import invitation
from dordis.rounds.server import RoundServer

_GATHERING = {name for name in vars(invitation) if isinstance(vars(invitation)[name], type)}

_GARBLED = wire.encode(Garbled())


@dataclass
class RecordedExchange:
    """Ask only what was not answered before; what a stage came to is durable before the next request leaves."""

    exchange: NetworkExchange
    state: ServerState
    _machine: RoundServer | None = None
    _bits: int = 0
    _uploads: dict[int, dict[ClientId, tuple[bytes, int, type[Message]]]] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    @property
    def machine(self) -> RoundServer:
        """Return the machine of the round that is under way."""
        if self._machine is None:
            raise InputError("no round has begun")
        return self._machine

    def begin(self, machine: RoundServer, parameters: Parameters) -> None:
        """Take note of the machine of a round: the sums of its chunks are read there."""
        self._machine, self._bits = machine, parameters.bits
        self._uploads.clear()
        self._names.clear()

    async def __call__(self, requests: Requests) -> Replies:
        """Answer from what is recorded, or ask."""
        request = next(iter(requests.values()), None)
        if request is None or type(request).__name__ in _GATHERING:
            return await self.exchange(requests)
        stage = (type(request).__name__, getattr(request, "chunk", SETUP))
        if request.ahead:  # of no use once the uploads are here
            return () if self.state.has_begun(stage[1]) else await self.exchange(requests)
        self._keep_sum(stage[1])
        closed = self.state.closed(stage)
        if closed is not None:
            self.exchange.note(request)
            return self._again(stage, request, closed)
        if request.discloses:
            self.state.disclose(stage, requests)
        return self._noted(stage, request, await self.exchange(requests))

    def _noted(self, stage: Stage, request: Message, replies: Replies) -> Iterator[tuple[ClientId, Message]]:
        """Pass replies on; at their end keep them, but for the sum of uploads, which is kept when it is made."""
        kept: dict[ClientId, tuple[bytes, int, type[Message]]] = {}
        for u, reply in replies:
            kept[u] = (wire.encode(reply), len(wire.bulk_of(reply)), type(reply))
            yield u, reply
        if request.uploads:
            self._uploads[stage[1]], self._names[stage[1]] = kept, stage[0]
        else:
            self.state.close_stage(stage, Closed({int(u): frame for u, (frame, *_) in sorted(kept.items())}))

    def _keep_sum(self, chunk: int) -> None:
        """Store the sum of a chunk whose uploads are complete, with its survivors and the senders of garbage."""
        uploads = self._uploads.pop(chunk, None)
        if uploads is None:
            return
        output, bits = self.machine.chunks[chunk].summing.output(), self._bits
        total = output.total & np.uint32(2**bits - 1)
        sizes = {uploads[u][1] for u in output.survivors}
        packed = sizes == {packed_size(total.size, bits)}
        data = pack(total, bits).tobytes() if packed else total.astype("<u4").tobytes()
        frames = {int(u): uploads[u][0] for u in output.survivors}
        frames |= {int(u): _GARBLED for u in uploads if u in output.named and u not in output.survivors}
        self.state.close_stage((self._names.pop(chunk), chunk), Closed(frames, data))

    def _again(self, stage: Stage, request: Message, closed: Closed) -> Iterator[tuple[ClientId, Message]]:
        """Yield the stored replies; the first upload stands for the sum of all, the others are zero.

        Garbage is garbage again, so that its sender is named again.
        """
        nothing: Mapping[bool, bytes] = {True: closed.total, False: bytes(len(closed.total))}
        for place, (u, frame) in enumerate(closed.replies.items()):
            if is_garbled(frame):
                yield ClientId(u), Garbled()
                continue
            bulk = nothing[place == 0] if closed.total else b""
            yield ClientId(u), wire.decode(frame, reply_to(request), bulk=bulk)


def is_garbled(frame: bytes) -> bool:
    """Tell whether a stored reply stands for garbage."""
    return frame == _GARBLED
