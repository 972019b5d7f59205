"""A relay that delays every byte by a link's latency, for kernels without netem.

A client connects to its relay on loopback; the relay connects to the server from the client's address, where the link's
bandwidth applies.  TCP ends at the relay, so that its slow start does not see the latency.

    python -m reproduce.cluster.relay LINKS.json HOST PORT
"""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec

from reproduce.cluster.links import Link

PIECE = 1 << 16
WINDOW = 256
"""Pieces under way in each direction: more bytes than any link here carries within its latency."""
READY = "ready"


async def delay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, latency: float) -> None:
    """Write what is read, in order, each piece `latency` seconds after it came; pass on the end of the stream, too."""
    clock = asyncio.get_running_loop().time
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WINDOW)

    async def take() -> None:
        data = b"..."
        while data:
            data = await reader.read(PIECE)
            await pieces.put((clock() + latency, data))

    async with asyncio.TaskGroup() as group:
        group.create_task(take())
        data = b"..."
        while data:
            due, data = await pieces.get()
            if (early := due - clock()) > 0:
                await asyncio.sleep(early)
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def close(writer: asyncio.StreamWriter, is_whole: bool) -> None:
    """Close one end of a connection: once all that was written to it has left if `is_whole`, otherwise at once."""
    if not is_whole:
        writer.transport.abort()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


class Relay:
    """The relay of one client."""

    def __init__(self, link: Link, host: str, port: int) -> None:
        self._link, self._host, self._port = link, host, port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Return the port at which the relay listens."""
        if self._server is None:
            raise RuntimeError("the relay was not started")
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self, port: int) -> "Relay":
        """Listen on loopback at `port`, or at a free port if `port` is 0."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        return self

    async def __aenter__(self) -> "Relay":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening, and break off all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection both ways until both ends have closed, or one has failed."""
        link, is_whole = self._link, False
        try:
            there, back = await asyncio.open_connection(self._host, self._port, local_addr=(link.address, 0))
        except OSError:
            await close(writer, is_whole=True)
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(delay(reader, back, link.latency))
                group.create_task(delay(there, writer, link.latency))
            is_whole = True
        except* (OSError, RuntimeError):  # a broken connection: what came before it broke is on its way or lost
            pass
        finally:
            for end in (back, writer):
                await close(end, is_whole)


async def relay_links(links: Sequence[Link], host: str, port: int) -> None:
    """Run the relays of all clients until cancelled."""
    async with AsyncExitStack() as open_relays:
        for link in links:
            await open_relays.enter_async_context(await Relay(link, host, port).start(link.port))
        print(READY, flush=True)
        await asyncio.Event().wait()


def main(path: str, host: str, port: str) -> None:
    """Relay for the clients of a file until this process is ended."""
    links = msgspec.json.decode(Path(path).read_bytes(), type=tuple[Link, ...])
    with suppress(KeyboardInterrupt):
        asyncio.run(relay_links(links, host, int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
