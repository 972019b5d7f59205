"""Uploads: received whole or not at all, resumed where they stopped, in few buffers that slow senders lose."""

import asyncio

import pytest

from dordis import wire
from dordis.errors import MalformedMessage
from dordis.network import upload_endpoint
from dordis.network.client import new_session
from dordis.network.messages import BodyInfo, FromServer, Reply
from dordis.network.upload_endpoint import BufferPool, Upload
from dordis.protocols.plaintext import Begin, Contribute, Contribution, Joined
from tests.network.local_server import HANG, PARAMETERS, VECTORS
from tests.network.raw_client import participant, read_status, send_request

pytestmark = pytest.mark.network

DATA = bytes(range(256)) * 64
VECTOR = VECTORS[1]


class Stream:
    """Pieces of a body; an exception among them is raised."""

    def __init__(self, *pieces):
        self._pieces = list(pieces)

    async def readany(self):
        piece = self._pieces.pop(0) if self._pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def pieces(self):
        while piece := await self.readany():
            yield piece


class Paused(Stream):
    """A sender that stalls for ever after its pieces."""

    async def readany(self):
        if not self._pieces:
            await asyncio.Event().wait()
        return await super().readany()


def expected(buffers, data=DATA):
    return Upload(BodyInfo.from_upload(data), buffers)


async def received(body, *pieces):
    await body.receive(Stream(*pieces).pieces())
    return await body.finish()


def test_an_upload_arrives_as_it_was_sent_and_its_buffer_is_reused():
    async def scenario():
        buffers = BufferPool(1)
        seen = []
        for _ in range(3):
            buffer = await received(expected(buffers), DATA[:1000], DATA[1000:])
            seen.append(id(buffer))
            assert bytes(buffer[: len(DATA)]) == DATA
            buffers.release(buffer)
        return seen

    first, second, third = asyncio.run(scenario())
    assert first == second == third


def test_an_upload_that_breaks_off_is_resumed_and_holds_no_buffer_meanwhile():
    async def scenario():
        buffers = BufferPool(1)
        broken = expected(buffers)
        with pytest.raises(ConnectionResetError):
            await broken.receive(Stream(DATA[:5000], ConnectionResetError()).pieces())
        assert broken.received == 5000
        buffers.release(await received(expected(buffers), DATA))
        return bytes((await received(broken, DATA[5000:]))[: len(DATA)])

    assert asyncio.run(scenario()) == DATA


def test_a_slow_sender_loses_its_buffer_to_one_that_waits(monkeypatch):
    monkeypatch.setattr(upload_endpoint, "SLOW", -1.0)

    async def scenario():
        buffers = BufferPool(1)
        slow = expected(buffers)
        sending = asyncio.ensure_future(slow.receive(Paused(DATA[:10]).pieces()))
        while slow.received < 10:
            await asyncio.sleep(0)
        monkeypatch.setattr(upload_endpoint, "SLOW", 0.0)
        buffer = await received(expected(buffers), DATA)
        sending.cancel()
        buffers.release(buffer)
        return bytes((await received(slow, DATA[10:]))[: len(DATA)])

    assert asyncio.run(scenario()) == DATA


def full_file(prefix=""):
    """Return a file without room for a byte, as on a full disk."""
    return open("/dev/full", "r+b")


def test_an_upload_that_breaks_off_while_the_disk_is_full_begins_again(monkeypatch, caplog):
    monkeypatch.setattr(upload_endpoint.tempfile, "TemporaryFile", full_file)

    async def scenario():
        buffers = BufferPool(1)
        broken = expected(buffers)
        with pytest.raises(ConnectionResetError):
            await broken.receive(Stream(DATA[:5000], ConnectionResetError()).pieces())
        assert broken.received == 0
        return bytes((await received(broken, DATA))[: len(DATA)])

    assert asyncio.run(scenario()) == DATA
    assert "begins again: no temporary file: No space left on device" in caplog.text


def test_a_slow_sender_loses_its_buffer_also_while_the_disk_is_full(monkeypatch):
    monkeypatch.setattr(upload_endpoint, "SLOW", -1.0)
    monkeypatch.setattr(upload_endpoint.tempfile, "TemporaryFile", full_file)

    async def scenario():
        buffers = BufferPool(1)
        slow = expected(buffers)
        sending = asyncio.ensure_future(slow.receive(Paused(DATA[:10]).pieces()))
        while slow.received < 10:
            await asyncio.sleep(0)
        monkeypatch.setattr(upload_endpoint, "SLOW", 0.0)
        buffer = await received(expected(buffers), DATA)
        sending.cancel()
        buffers.release(buffer)
        return bytes((await received(slow, DATA))[: len(DATA)])

    assert asyncio.run(scenario()) == DATA


def test_an_upload_whose_file_has_no_more_room_begins_again():
    async def scenario():
        buffers = BufferPool(1)
        broken = expected(buffers)
        with pytest.raises(ConnectionResetError):
            await broken.receive(Stream(DATA[:5000], ConnectionResetError()).pieces())
        broken._file.close()
        broken._file = full_file()
        with pytest.raises(OSError, match="No space left"):
            await received(broken, DATA[5000:])
        assert broken.received == 0
        return bytes((await received(broken, DATA))[: len(DATA)])

    assert asyncio.run(scenario()) == DATA


def test_an_upload_that_stalls_is_cut_off(monkeypatch):
    monkeypatch.setattr(upload_endpoint, "STALL", 0.01)

    async def scenario():
        body = expected(BufferPool(1))
        with pytest.raises(TimeoutError):
            await body.receive(Paused(DATA[:10]).pieces())
        body.close()

    asyncio.run(scenario())


def test_an_upload_with_a_wrong_digest_is_refused_and_may_be_repeated():
    async def scenario():
        buffers = BufferPool(1)
        body = expected(buffers)
        with pytest.raises(MalformedMessage, match="digest"):
            await received(body, DATA[:-1] + b"x")
        assert body.received == 0
        return bytes((await received(body, DATA))[: len(DATA)])

    assert asyncio.run(scenario()) == DATA


def test_an_upload_longer_than_announced_is_refused():
    body = expected(BufferPool(1))
    with pytest.raises(MalformedMessage, match="longer"):
        asyncio.run(received(body, DATA, b"x"))
    body.close()


class Uploader:
    """A client whose vector a test uploads."""

    def __init__(self, local):
        self.local = local

    def open(self):
        """Log in, get the request for a vector, and announce it; return the token and the id of the request."""

        async def announce():
            client = participant(self.local)
            self.session = new_session()
            async with await client._open_socket(self.session, "/login") as socket:
                welcome = await client._log_in(socket)
            headers = {"Authorization": f"Bearer {welcome.token.hex()}"}
            self.socket = await client._open_socket(self.session, "/control", headers)
            return welcome.token.hex()

        token = self.local.run(announce())
        self.local.server.wait(lambda there: 1 in there, HANG)
        self.answer(Begin(PARAMETERS), Joined(), None)
        self.replies = self.local.server.perform(self.local.server.exchange({1: Contribute(0)}))
        return token, self.answer(None, Contribution(0, VECTOR), BodyInfo.from_upload(VECTOR))

    def answer(self, request, reply, body):
        if request is not None:
            replies = self.local.server.perform(self.local.server.exchange({1: request}))

        async def reply_to():
            asked = wire.decode((await self.socket.receive()).data, FromServer)
            await self.socket.send_bytes(wire.encode(Reply(asked.id, wire.encode(reply), body)))
            return asked.id

        id = self.local.run(reply_to())
        if request is not None:
            assert dict(replies) == {1: reply}
        return id

    def close(self):
        async def end():
            await self.socket.close()
            await self.session.close()

        self.local.run(end())


@pytest.fixture
def uploader(challenging):
    client = Uploader(challenging)
    yield client
    client.close()


def test_an_upload_is_not_decompressed(challenging, uploader):
    token, id = uploader.open()
    connection = send_request(
        challenging, "PUT", f"/vectors/{id}", token, Content_Length=len(VECTOR), Content_Encoding="gzip"
    )
    connection.sendall(VECTOR)
    assert read_status(connection) == 204
    ((_, reply),) = uploader.replies
    assert bytes(reply.vector) == VECTOR


def test_an_upload_that_was_given_up_frees_its_slot(challenging, uploader):
    token, id = uploader.open()
    connection = send_request(challenging, "PUT", f"/vectors/{id}", token, Content_Length=len(VECTOR))
    connection.sendall(VECTOR[:4])
    endpoint = challenging.server.uploads

    async def begun():
        while (body := endpoint._expected.get((1, id))) is None or body.received < 4:
            await asyncio.sleep(0)

    async def given_up():
        challenging.server.exchange.exclude(1)

    challenging.server.perform(begun())
    challenging.server.perform(given_up())
    assert list(uploader.replies) == []
    connection.sendall(VECTOR[4:8])
    assert read_status(connection) in (404, 422)
    assert endpoint._uploads == 0
