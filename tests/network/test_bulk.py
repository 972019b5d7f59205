"""Bodies: received whole or not at all, going on where they stopped, in few buffers that slow senders do not keep."""

import asyncio

import pytest

from dordis.errors import MalformedMessage
from dordis.network import bulk
from dordis.network.bulk import Blobs, Body, Buffers, seal
from dordis.network.messages import Beside

DATA = bytes(range(256)) * 64


class Stream:
    """Pieces that come one after the other; an error ends them."""

    def __init__(self, *pieces):
        self._pieces = list(pieces)

    async def readany(self):
        piece = self._pieces.pop(0) if self._pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def pour(self, body):
        while piece := await self.readany():
            body.write(piece)


class Paused(Stream):
    """A sender that waits, for ever, after its pieces."""

    async def readany(self):
        if not self._pieces:
            await asyncio.Event().wait()
        return await super().readany()


def expected(buffers, data=DATA):
    return Body(Beside(len(data), seal(data)), buffers)


async def received(body, *pieces):
    await body.receive(Stream(*pieces).pour)
    return await body.finish()


def test_a_body_arrives_as_it_was_sent_and_the_buffer_is_used_again():
    async def scenario():
        buffers = Buffers(1)
        seen = []
        for _ in range(3):
            buffer = await received(expected(buffers), DATA[:1000], DATA[1000:])
            seen.append(id(buffer))
            assert bytes(buffer[: len(DATA)]) == DATA
            buffers.give(buffer)
        return seen

    first, second, third = asyncio.run(scenario())
    assert first == second == third


def test_a_body_that_breaks_off_goes_on_and_does_not_keep_its_buffer_meanwhile():
    async def scenario():
        buffers = Buffers(1)
        broken = expected(buffers)
        with pytest.raises(ConnectionResetError):
            await broken.receive(Stream(DATA[:5000], ConnectionResetError()).pour)
        assert broken.received == 5000
        buffers.give(await received(expected(buffers), DATA))
        return bytes((await received(broken, DATA[5000:]))[: len(DATA)])

    assert asyncio.run(scenario()) == DATA


def test_a_slow_sender_gives_its_buffer_to_one_that_waits(monkeypatch):
    monkeypatch.setattr(bulk, "SLOW", -1.0)

    async def scenario():
        buffers = Buffers(1)
        slow = expected(buffers)
        sending = asyncio.ensure_future(slow.receive(Paused(DATA[:10]).pour))
        while slow.received < 10:
            await asyncio.sleep(0)
        monkeypatch.setattr(bulk, "SLOW", 0.0)
        buffer = await received(expected(buffers), DATA)
        sending.cancel()
        buffers.give(buffer)
        return bytes((await received(slow, DATA[10:]))[: len(DATA)])

    assert asyncio.run(scenario()) == DATA


def test_a_body_that_stalls_is_cut_off(monkeypatch):
    monkeypatch.setattr(bulk, "STALL", 0.01)

    async def scenario():
        body = expected(Buffers(1))
        with pytest.raises(TimeoutError):
            await body.receive(Paused(DATA[:10]).pour)
        body.close()

    asyncio.run(scenario())


def test_a_body_that_is_not_what_its_digest_is_of_is_refused_and_may_come_again():
    async def scenario():
        buffers = Buffers(1)
        body = expected(buffers)
        with pytest.raises(MalformedMessage, match="digest"):
            await received(body, DATA[:-1] + b"x")
        assert body.received == 0
        return bytes((await received(body, DATA))[: len(DATA)])

    assert asyncio.run(scenario()) == DATA


def test_a_body_that_is_too_long_is_refused():
    body = expected(Buffers(1))
    with pytest.raises(MalformedMessage, match="longer"):
        asyncio.run(received(body, DATA, b"x"))
    body.close()


def test_a_digest_tells_every_change_and_is_another_one_each_time():
    assert seal(DATA) != seal(DATA)
    for changed in (DATA[:-1], DATA + b"\0", DATA[:100] + b"\xff" + DATA[101:], b""):
        with pytest.raises(MalformedMessage):
            bulk.check_seal(changed, seal(DATA))
    bulk.check_seal(memoryview(bytearray(DATA)), seal(DATA))


def test_what_is_offered_twice_is_there_until_it_is_withdrawn_twice():
    blobs = Blobs()
    beside = blobs.offer(DATA)
    assert blobs.offer(bytearray(DATA)) == beside
    blobs.withdraw(beside.digest)
    assert blobs.get(beside.digest) == DATA
    blobs.withdraw(beside.digest)
    assert blobs.get(beside.digest) is None
