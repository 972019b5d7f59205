"""The relay: every byte comes out, in order, one latency later, from the client's address; ends are passed on."""

import asyncio

import pytest

from dordis.simulation.virtual_devices import run_virtually
from reproduce.cluster.links import Link
from reproduce.cluster.relay import WINDOW, Relay, delay


class Writer:
    """Note when each piece is written."""

    def __init__(self):
        self.pieces = []
        self.ended = None

    def write(self, data):
        if data:
            self.pieces.append((asyncio.get_running_loop().time(), data))

    async def drain(self):
        pass

    def write_eof(self):
        self.ended = asyncio.get_running_loop().time()


def test_every_piece_comes_out_one_latency_after_it_went_in():
    async def carry():
        reader, writer = asyncio.StreamReader(), Writer()

        async def feed():
            for second in range(3):
                reader.feed_data(bytes([second]) * 5)
                await asyncio.sleep(1.0)
            reader.feed_eof()

        await asyncio.gather(feed(), delay(reader, writer, 0.25))
        return writer

    writer = run_virtually(carry())
    assert [data for _, data in writer.pieces] == [b"\0" * 5, b"\1" * 5, b"\2" * 5]
    assert [time for time, _ in writer.pieces] == pytest.approx([0.25, 1.25, 2.25])
    assert writer.ended == pytest.approx(3.25)


def test_a_long_stream_is_delayed_once_and_not_piece_by_piece():
    async def carry():
        reader, writer = asyncio.StreamReader(), Writer()
        reader.feed_data(bytes(64 * WINDOW * 100))
        reader.feed_eof()
        await delay(reader, writer, 0.25)
        return writer

    writer = run_virtually(carry())
    assert sum(len(data) for _, data in writer.pieces) == 64 * WINDOW * 100
    assert writer.pieces[-1][0] == pytest.approx(0.25)


def test_connections_pass_both_ways_from_the_clients_address():
    async def talk():
        seen = []

        async def echo(reader, writer):
            seen.append(writer.get_extra_info("peername")[0])
            while data := await reader.read(1 << 16):
                writer.write(data.upper())
                await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, await Relay(Link(1, "127.0.0.2", 1.0, 0.001), "127.0.0.1", port).start(0) as relay:
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            writer.write(b"abc" * 100_000)
            writer.write_eof()
            answer = await reader.read(-1)
            writer.close()
            await writer.wait_closed()
        return answer, seen

    answer, seen = asyncio.run(talk())
    assert answer == b"ABC" * 100_000
    assert seen == ["127.0.0.2"]


def test_a_server_that_is_not_there_closes_the_clients_connection():
    async def talk():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        async with await Relay(Link(1, "127.0.0.1", 1.0, 0.0), "127.0.0.1", port).start(0) as relay:
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            answer = await reader.read(-1)
            writer.close()
            await writer.wait_closed()
        return answer

    assert asyncio.run(talk()) == b""


def test_closing_a_relay_breaks_off_its_connections():
    async def talk():
        arrived, ended = asyncio.Event(), asyncio.Event()

        async def wait(reader, writer):
            arrived.set()
            await reader.read(-1)
            writer.close()
            await writer.wait_closed()
            ended.set()

        server = await asyncio.start_server(wait, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            async with await Relay(Link(1, "127.0.0.1", 1.0, 0.0), "127.0.0.1", port).start(0) as relay:
                reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
                await arrived.wait()
            assert await reader.read(-1) == b""
            writer.close()
            await writer.wait_closed()
            await ended.wait()

    asyncio.run(talk())
