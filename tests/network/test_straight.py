"""Bodies that come straight into a buffer: whole, in order, and nothing of the request that follows."""

import asyncio
import contextlib

from aiohttp import web

from dordis.errors import MalformedMessage
from dordis.network.straight import CHUNK, StraightHandler

BODY = bytes(range(256)) * 4096
"""More than is read of a body before it is asked for."""


class Kept:
    """A sink in memory; it counts what was copied to it.  If it may be given up, that is when it has something."""

    def __init__(self, size, given_up=None):
        self.data, self.size, self.copied = bytearray(size), 0, 0
        self.given_up = given_up

    def room(self):
        if self.given_up is not None and self.given_up.is_set():
            raise MalformedMessage("nobody waits")
        return memoryview(self.data)[self.size :]

    def took(self, count):
        self.size += count
        if self.given_up is not None:
            self.given_up.set()
        return self.size == len(self.data)

    def write(self, piece):
        self.data[self.size : self.size + len(piece)] = piece
        self.copied += len(piece)
        self.took(len(piece))


async def with_server(scenario, given_up=None):
    """Run a scenario with a connection to a server that keeps what is put; return what was kept."""
    kept = []

    async def put(request):
        kept.append(Kept(request.content_length, given_up))
        try:
            await request.protocol.pour(request.content, kept[-1])
        except MalformedMessage:
            return web.Response(status=422, headers={"Connection": "close"})
        return web.Response(status=204)

    app = web.Application()
    app.add_routes([web.put("/", put)])
    runner = web.AppRunner(app)
    await runner.setup()
    space = memoryview(bytearray(CHUNK))
    server = await asyncio.get_running_loop().create_server(
        lambda: StraightHandler(space, runner.server, lingering_time=0.0), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    await scenario(reader, writer)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    server.close()
    await server.wait_closed()
    await runner.cleanup()
    return kept


def head(size):
    return f"PUT / HTTP/1.1\r\nHost: here\r\nContent-Length: {size}\r\n\r\n".encode()


async def status(reader):
    lines = await reader.readuntil(b"\r\n\r\n")
    return int(lines.split()[1])


def test_a_body_is_kept_as_it_was_sent_and_the_connection_goes_on():
    async def scenario(reader, writer):
        for _ in range(3):
            writer.write(head(len(BODY)))
            for start in range(0, len(BODY), 100_000):
                writer.write(BODY[start : start + 100_000])
                await writer.drain()
            assert await status(reader) == 204

    kept = asyncio.run(with_server(scenario))
    assert [one.data for one in kept] == [BODY] * 3
    assert all(one.copied <= 3 * CHUNK for one in kept)


def test_nothing_of_the_request_that_follows_at_once_is_taken_for_the_body():
    bodies = [BODY, b"short", BODY[::-1], b"x"]

    async def scenario(reader, writer):
        writer.write(b"".join(head(len(body)) + body for body in bodies))
        assert [await status(reader) for _ in bodies] == [204] * len(bodies)

    assert [one.data for one in asyncio.run(with_server(scenario))] == bodies


def test_a_body_that_nobody_waits_for_any_more_is_refused():
    given_up = asyncio.Event()

    async def scenario(reader, writer):
        writer.write(head(len(BODY)) + BODY[:1000])
        await given_up.wait()
        writer.write(BODY[1000:])
        assert await status(reader) == 422

    (kept,) = asyncio.run(with_server(scenario, given_up))
    assert kept.size == 1000
