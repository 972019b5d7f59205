"""A process that only receives: it takes the vectors of its clients, and adds those that it is told to into sums.

The server's process decides: which token is whose, what is expected, and, when a vector has come whole, whether it is
added.  So a vector is added after the same checks as in one process.  When all are added, the sum is handed over,
packed like a vector.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
import numpy as np
from aiohttp import web

from dordis.kernels.packing import add_packed, pack
from dordis.kernels.ring import Vector
from dordis.network.connections import Connections
from dordis.network.intake import HeldHere, Intake
from dordis.network.messages import Beside
from dordis.protocol import ENCODER, ClientId

log = logging.getLogger("dordis.network")

_LENGTH = 8
_STANDARD = 3
"""Files that stay open: those that every process has."""


class Order(msgspec.Struct, frozen=True, tag=True):
    """What the server's process and one that receives tell each other."""


class Grant(Order, frozen=True):
    """Take whoever shows this token for a client."""

    client: ClientId
    token: bytes

    def __repr__(self) -> str:
        return f"<Grant for client {self.client}>"


class Dismiss(Order, frozen=True):
    """Take nothing more from a client."""

    client: ClientId


class Expect(Order, frozen=True):
    """Take a body."""

    client: ClientId
    id: int
    beside: Beside


class Forget(Order, frozen=True):
    """Take a body no more, or drop it if it has come."""

    client: ClientId
    id: int


class Add(Order, frozen=True):
    """Add a body that has come to a sum of so many elements."""

    client: ClientId
    id: int
    sum: int
    count: int
    bits: int


class HandOver(Order, frozen=True):
    """Hand a sum over; nothing is added to it any more."""

    sum: int
    bits: int


class NextRound(Order, frozen=True):
    """A round begins: forget what is left of the one before."""


class Came(Order, frozen=True):
    """A body has come whole, as its digest says; its last byte tells whether it is packed as it must be."""

    client: ClientId
    id: int
    last: int


class Summed(Order, frozen=True):
    """This is a sum, packed, of so many bodies."""

    sum: int
    bodies: int
    data: bytes

    def __repr__(self) -> str:
        return f"<Summed {self.sum}>"


FromServer = Grant | Dismiss | Expect | Forget | Add | HandOver | NextRound
FromReceiver = Came | Summed
Kind = TypeVar("Kind")


class OrderChannel:
    """Orders between two processes of one server, over a pair of sockets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, pair: socket.socket) -> "OrderChannel":
        """Use one socket of a pair."""
        return cls(*await asyncio.open_connection(sock=pair))

    def send(self, order: Order) -> None:
        """Send; what cannot be sent is known to whoever reads."""
        data = ENCODER.encode(order)
        self._writer.writelines((len(data).to_bytes(_LENGTH, "big"), data))

    async def orders(self, kinds: Any) -> AsyncIterator[Any]:
        """Yield what comes, until the other process ends."""
        decoder = msgspec.msgpack.Decoder(kinds)
        try:
            while True:
                length = int.from_bytes(await self._reader.readexactly(_LENGTH), "big")
                yield decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def close(self) -> None:
        """End it."""
        self._writer.close()


class Receiver:
    """The bodies of some clients, and their sums."""

    def __init__(self, channel: OrderChannel) -> None:
        self._channel = channel
        self.intake = Intake(self._came)
        self._held: dict[tuple[ClientId, int], HeldHere] = {}
        self._sums: dict[int, tuple[Vector, int]] = {}

    def _came(self, client: ClientId, id: int, held: HeldHere) -> None:
        self._held[client, id] = held
        self._channel.send(Came(client, id, held.bulk[-1]))

    def obey(self, order: FromServer) -> None:
        """Do what the server's process says."""
        match order:
            case Grant():
                self.intake.grant(order.client, b"", order.token)
            case Dismiss():
                self.intake.dismiss(order.client)
            case Expect():
                self.intake.expect(order.client, order.id, order.beside)
            case Forget():
                self._forget(order.client, order.id)
            case Add():
                self._add(order)
            case HandOver():
                total, bodies = self._sums.pop(order.sum)
                packed = pack(total & np.uint32(2**order.bits - 1), order.bits)
                self._channel.send(Summed(order.sum, bodies, packed.tobytes()))
            case NextRound():
                self._sums.clear()
                self.intake.begin()
                for held in self._held.values():
                    held.release()
                self._held.clear()

    def _forget(self, client: ClientId, id: int) -> None:
        self.intake.forget(client, id)
        held = self._held.pop((client, id), None)
        if held is not None:
            held.release()

    def _add(self, order: Add) -> None:
        held = self._held.pop((order.client, order.id), None)
        if held is None:  # of an earlier round; the count of bodies shows a missing one
            return
        total, bodies = self._sums.get(order.sum) or (np.zeros(order.count, np.uint32), 0)
        add_packed(total, held.bulk, order.bits)
        self._sums[order.sum] = total, bodies + 1
        held.release()


def receive(listener: socket.socket, context: ssl.SSLContext, pair: socket.socket) -> None:
    """Be a process that receives, until the server's process ends."""
    gc.freeze()  # what belongs to the other process is not touched here, and its files are closed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's process ends first
    kept = sorted({listener.fileno(), pair.fileno()})
    for low, high in zip([_STANDARD - 1, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)
    asyncio.run(_receive(listener, context, pair))


async def _receive(listener: socket.socket, context: ssl.SSLContext, pair: socket.socket) -> None:
    channel = await OrderChannel.over(pair)
    receiver = Receiver(channel)
    app = web.Application()
    app.add_routes(receiver.intake.routes())
    connections = Connections(app, context, receiver.intake.is_known)
    await connections.open(listener)
    async for order in channel.orders(FromServer):
        receiver.obey(order)
    channel.close()
    await connections.close()
