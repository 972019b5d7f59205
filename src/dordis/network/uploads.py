"""Where the vectors of clients go: to the server's process, or to some that only receive (`performance.receivers`).

A client keeps the receiver that it was given.  A receiver that ends is started again, and its clients log in again; a
round in which it had added something fails, before anything of that chunk is opened.  One that ends again and again is
not replaced any more: its clients get another one, or the server's own process if none is left.
"""

import asyncio
import logging
import multiprocessing
import socket
import ssl
from collections.abc import Callable, Collection
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dordis.errors import InputError, ReceiverLost, RoundFailed
from dordis.kernels.packing import PackedElsewhere, add_packed, check_packed, pack
from dordis.kernels.ring import Vector
from dordis.network.connections import bound
from dordis.network.intake import HeldHere, Intake
from dordis.network.messages import Beside
from dordis.network.receiver import (
    Add,
    Came,
    Dismiss,
    Expect,
    Forget,
    FromReceiver,
    Grant,
    HandOver,
    NextRound,
    Order,
    OrderChannel,
    Summed,
    receive,
)
from dordis.protocol import ClientId

log = logging.getLogger("dordis.network")

RESTARTS = 16
"""Largest number of receive processes that a server restarts."""
PORT_TRIES, PORT_PAUSE = 50, 0.1
"""Tries, and seconds between them, to bind the port of a receive process that ended."""
HANDED_OVER = 60.0
"""Seconds in which a receiver hands a sum over."""


@dataclass(eq=False)
class RemoteSum:
    """What a receiver adds up for the server: into which vector it goes in the end."""

    total: Vector
    bits: int
    bodies: int = 0
    summed: "asyncio.Future[Summed] | None" = None


@dataclass(eq=False)
class ReceiverProcess:
    """A receiver, as the server's process sees it."""

    process: Any
    channel: OrderChannel
    port: int
    clients: set[ClientId] = field(default_factory=set)
    expected: dict[tuple[ClientId, int], tuple[int, int]] = field(default_factory=dict)
    """The sum that a body belongs to, and its size."""
    sums: dict[int, RemoteSum] = field(default_factory=dict)
    ended: bool = False


class HeldElsewhere(PackedElsewhere):
    """A body that has come whole to a receiver."""

    def __init__(self, uploads: "Uploads", remote: ReceiverProcess, came: Came, sum: int, size: int) -> None:
        self._uploads, self._remote, self._came, self._sum, self._size = uploads, remote, came, sum, size
        self._added = False

    def __len__(self) -> int:
        return self._size

    @property
    def bulk(self) -> Any:
        """Return what stands for the bytes."""
        return self

    def add_to(self, total: Vector, bits: int) -> None:
        """Have the receiver add it; what it adds up is added to the total when all replies have been taken."""
        check_packed(self._size, self._came.last, bits, total.size)
        remote, came = self._remote, self._came
        if remote.ended:
            raise ReceiverLost
        remote.sums.setdefault(self._sum, RemoteSum(total, bits)).bodies += 1
        self._added = True
        self._uploads.order(remote, Add(came.client, came.id, self._sum, int(total.size), bits))

    def release(self) -> None:
        """Have it dropped, unless it was added."""
        if not self._added:
            self._remote.channel.send(Forget(self._came.client, self._came.id))


Delivered = Callable[[ClientId, int, HeldHere | HeldElsewhere], None]


class Uploads:
    """Tell who is to put what where; `delivered` is told what has come, `cut` who has to log in again.

    All but `start`, `merge` and `order` are for the event loop of the server.
    """

    def __init__(self, delivered: Delivered, cut: Callable[[Collection[ClientId]], None]) -> None:
        self._delivered, self._cut = delivered, cut
        self._loop = asyncio.get_running_loop()
        self.intake = Intake(delivered)
        self.remotes: list[ReceiverProcess] = []
        self._readers: list[asyncio.Task[None]] = []
        self._machines: dict[ClientId, ReceiverProcess] = {}
        self._fork: Callable[[int], tuple[Any, socket.socket, int]] | None = None
        self._restarts = RESTARTS

    def start(self, count: int, host: str, port: int, context: ssl.SSLContext) -> None:
        """Start receivers, at the ports that follow one, or at any if that is 0."""
        for bits in (1, 32):  # so that both ways to pack are compiled once, here, and not by each receiver
            add_packed(np.zeros(1, np.uint32), pack(np.zeros(1, np.uint32), bits), bits)

        def fork(port: int) -> tuple[Any, socket.socket, int]:
            with bound(host, port) as listener:
                ours, theirs = socket.socketpair()
                with theirs:
                    forking = multiprocessing.get_context("fork")
                    process = forking.Process(target=receive, args=(listener, context, theirs), daemon=True)
                    process.start()
                return process, ours, int(listener.getsockname()[1])

        self._fork = fork
        for k in range(1, count + 1):
            asyncio.run_coroutine_threadsafe(self._attach(*fork(port and port + k)), self._loop).result()

    async def _attach(self, process: Any, pair: socket.socket, port: int) -> None:
        remote = ReceiverProcess(process, await OrderChannel.over(pair), port)
        self.remotes.append(remote)
        self._readers.append(asyncio.ensure_future(self._read(remote)))

    async def close(self) -> None:
        """End the receivers, also one that is just being started in the place of another."""
        self._fork = None
        while reading := [reader for reader in self._readers if not reader.done()]:
            for remote in self.remotes:
                remote.ended = True
                remote.channel.close()
            await asyncio.gather(*reading)
        for remote in self.remotes:
            await asyncio.to_thread(remote.process.join)

    # Who puts what where

    def admit(self, client: ClientId, machine: bytes) -> tuple[bytes, int]:
        """Return a token for all that a client does from now on, and the port for its vectors, if it is another."""
        token, remote = self.intake.admit(client, machine), self._machines.get(client)
        living = [one for one in self.remotes if not one.ended]
        if (remote is None or remote.ended) and living:
            remote = self._machines[client] = min(living, key=lambda one: len(one.clients))
            remote.clients.add(client)
        if remote is None or remote.ended:
            return token, 0
        remote.channel.send(Grant(client, token))
        return token, remote.port

    def dismiss(self, client: ClientId) -> None:
        """Take nothing more from a client, and give it nothing."""
        self.intake.dismiss(client)
        if (remote := self._remote(client)) is not None:
            remote.channel.send(Dismiss(client))

    def expect(self, client: ClientId, id: int, beside: Beside, sum: int) -> None:
        """Take a body of this size for a request; it belongs to a sum."""
        remote = self._remote(client)
        if remote is None:
            self.intake.expect(client, id, beside)
        else:
            remote.expected[client, id] = sum, beside.size
            remote.channel.send(Expect(client, id, beside))

    def forget(self, client: ClientId, id: int) -> None:
        """Take no body for a request any more."""
        self.intake.forget(client, id)
        remote = self._remote(client)
        if remote is not None and remote.expected.pop((client, id), None) is not None:
            remote.channel.send(Forget(client, id))

    def begin(self) -> None:
        """Forget what was put in the round before."""
        self.intake.begin()
        for remote in self.remotes:
            remote.expected.clear()
            remote.sums.clear()
            if not remote.ended:
                remote.channel.send(NextRound())

    def _remote(self, client: ClientId) -> ReceiverProcess | None:
        remote = self._machines.get(client)
        return None if remote is None or remote.ended else remote

    # What receivers say

    async def _read(self, remote: ReceiverProcess) -> None:
        async for order in remote.channel.orders(FromReceiver):
            match order:
                case Came():
                    self._came(remote, order)
                case Summed() if order.sum in remote.sums and (waiting := remote.sums[order.sum].summed) is not None:
                    waiting.set_result(order)
        if not remote.ended:
            await self._recover(remote)

    def _came(self, remote: ReceiverProcess, came: Came) -> None:
        sum, size = remote.expected.pop((came.client, came.id), (0, 0))
        if size:
            self._delivered(came.client, came.id, HeldElsewhere(self, remote, came, sum, size))
        else:  # the deadline has passed meanwhile
            remote.channel.send(Forget(came.client, came.id))

    async def _recover(self, remote: ReceiverProcess) -> None:
        """Restart a receive process that ended, and have its clients log in again."""
        log.error("a receive process has ended: its %d clients log in again", len(remote.clients))
        remote.ended = True
        remote.channel.close()
        for waiting in (one.summed for one in remote.sums.values()):
            if waiting is not None and not waiting.done():
                waiting.set_exception(ReceiverLost())
        await self._replace(remote)
        self._cut(frozenset(remote.clients))

    async def _replace(self, remote: ReceiverProcess) -> None:
        """Start a new receive process on the port of one that ended, as soon as the port is free."""
        if not self._restarts:
            return
        self._restarts -= 1
        for _ in range(PORT_TRIES):
            if self._fork is None:  # the server stops
                return
            try:
                forked = self._fork(remote.port)
            except InputError:  # the port is not free yet
                await asyncio.sleep(PORT_PAUSE)
            else:
                await self._attach(*forked)
                return
        log.error("port %d is still in use: the receive process that ended is not restarted", remote.port)

    # In the thread of a flow

    def order(self, remote: ReceiverProcess, order: Order) -> None:
        """Tell a receiver something."""
        self._loop.call_soon_threadsafe(remote.channel.send, order)

    def merge(self, sum: int) -> None:
        """Add what the receivers have added up to the total; nothing is added to it afterwards."""
        parts = [(remote, remote.sums[sum]) for remote in self.remotes if sum in remote.sums]
        handing = [
            (wanted, asyncio.run_coroutine_threadsafe(self._handed_over(remote, sum, wanted), self._loop))
            for remote, wanted in parts
        ]
        for wanted, handed in handing:
            try:
                summed = handed.result(HANDED_OVER)
            except NotInTime:
                raise RoundFailed(f"a receive process did not hand its sum over in {HANDED_OVER:g} seconds") from None
            check_all_added(summed, wanted)
            add_packed(wanted.total, summed.data, wanted.bits)

    async def _handed_over(self, remote: ReceiverProcess, sum: int, wanted: RemoteSum) -> Summed:
        if remote.ended:
            raise ReceiverLost
        wanted.summed = self._loop.create_future()
        remote.channel.send(HandOver(sum, wanted.bits))
        try:
            return await wanted.summed
        finally:
            remote.sums.pop(sum, None)


def check_all_added(handed: Summed, wanted: RemoteSum) -> None:
    """A sum that is handed over is of as many vectors as the server accepted."""
    if handed.bodies != wanted.bodies:
        raise RoundFailed(f"a receive process has added {handed.bodies} vectors, and {wanted.bodies} were accepted")
