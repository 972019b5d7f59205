"""Whoever has not logged in, or misuses a log-in, gets little: few bytes, little time, no way around the door."""

import asyncio
import socket
import ssl
from dataclasses import replace
from datetime import UTC, datetime

import aiohttp
import numpy as np
import pytest

from dordis import wire
from dordis.errors import InputError, LoginRefused
from dordis.federation.authority import Authority
from dordis.federation.certificates import to_der
from dordis.federation.identity import load_identity, load_server_identity
from dordis.network import connections, intake, login, server
from dordis.network.bulk import seal
from dordis.network.client import Participant, new_session
from dordis.network.doors import FederationPass
from dordis.network.messages import SUBPROTOCOL, Answered, Beside, FromServer, Hello
from dordis.network.transfers import Address
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.plaintext.messages import Begin, Contribute, Contribution, Joined
from tests.federation.parties import joined
from tests.network.federation import enrol, publish
from tests.network.local import HANG, LocalServer
from tests.rounds.parties import agreed

pytestmark = pytest.mark.network

PARAMETERS = agreed(chunks=2)
VECTOR = np.arange(PARAMETERS.chunks[0].stop, dtype="<u4").tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return enrol(tmp_path_factory.mktemp("federation"), 2)


@pytest.fixture
def local(folder):
    """A server that asks for no certificate in TLS: anybody can talk to it."""
    started = LocalServer(folder, mutual=False, stage=HANG, train=HANG, grace=HANG)
    yield started
    started.close()


class Silent:
    """A client that answers nothing by itself."""

    def handle(self, request):
        raise AssertionError(request)


def connected(local):
    """Return a TLS connection of somebody who shows no certificate."""
    own = login.client_context(load_identity(local.folder / "c1.key", datetime.now(UTC)), mutual=False)
    plain = socket.create_connection(("localhost", local.server.port), HANG)
    return own.wrap_socket(plain, server_hostname="localhost")


def received(connection):
    """Return what comes until the other side closes."""
    data = b""
    try:
        while piece := connection.recv(1 << 16):
            data += piece
    except (ConnectionError, ssl.SSLError):
        pass
    connection.close()
    return data


def participant(local, name="c1", port=0):
    own = FederationPass(load_identity(local.folder / f"{name}.key", datetime.now(UTC)), mutual=False)
    return Participant(Address("localhost", port or local.server.port), own, lambda welcome: Silent(), PLAINTEXT)


def logged_in(local, name="c1"):
    """Return the token of a client that has logged in."""

    async def log_in():
        client = participant(local, name)
        async with new_session() as session, await client._opened(session, "/login") as socket:
            return await client._log_in(socket)

    return local.run(log_in()).token.hex()


def asked(local, method, path, token="", **headers):
    """Send one request over a connection of its own; return its status."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"Authorization: Bearer {token}"] if token else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    connection = connected(local)
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection


def status(connection):
    return int(received(connection).split(b" ", 2)[1])


@pytest.mark.parametrize("sent", [b"", b"GET /login HTTP/1.1\r\nHost: "], ids=["nothing", "half a header"])
def test_a_connection_without_a_whole_request_is_closed(folder, monkeypatch, sent):
    monkeypatch.setattr(connections, "LOGIN", 0.2)
    local = LocalServer(folder, mutual=False)
    connection = connected(local)
    connection.sendall(sent)
    assert received(connection) in (b"", b"HTTP/1.1 408 Request Timeout\r\n")
    local.close()


def test_whoever_does_not_log_in_in_time_is_let_go(folder, monkeypatch):
    monkeypatch.setattr(connections, "LOGIN", 0.2)
    local = LocalServer(folder, mutual=False)

    async def hang():
        async with new_session() as session, await participant(local)._opened(session, "/login") as socket:
            await socket.receive()
            return (await socket.receive()).data

    assert local.run(hang()) == server.REFUSED
    local.close()


def test_before_the_log_in_frames_are_small(local):
    async def shout():
        async with new_session() as session, await participant(local)._opened(session, "/login") as socket:
            await socket.receive()
            await socket.send_bytes(wire.encode(Hello(bytes(server.LARGEST_HELLO), bytes(16))))
            return (await socket.receive()).data

    assert local.run(shout()) == aiohttp.WSCloseCode.MESSAGE_TOO_BIG


@pytest.mark.parametrize("token", ["", "00" * 32, "zz", "é"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/control"), ("GET", "/blobs/00"), ("PUT", "/vectors/1")])
def test_without_a_token_there_is_nothing_behind_the_door(local, method, path, token):
    upgrade = {"Sec_WebSocket_Protocol": SUBPROTOCOL}
    assert status(asked(local, method, path, token.encode().decode("latin-1"), **upgrade)) == 401


def test_a_new_log_in_makes_the_token_of_before_void(local):
    before, after = logged_in(local), logged_in(local)
    assert status(asked(local, "GET", "/blobs/00", before)) == 401
    assert status(asked(local, "GET", "/blobs/00", after)) == 404


def cut_off(local, frame):
    """Send a frame as client 1; return its token, once the server has closed."""

    async def misbehave():
        client = participant(local)
        async with new_session() as session:
            async with await client._opened(session, "/login") as socket:
                welcome = await client._log_in(socket)
            headers = {"Authorization": f"Bearer {welcome.token.hex()}"}
            async with await client._opened(session, "/control", headers) as socket:
                await socket.send_bytes(frame)
                assert (await socket.receive()).data == server.REFUSED
        return welcome.token.hex()

    return local.run(misbehave())


def test_whoever_is_cut_off_has_no_token_and_is_not_let_in_at_once(local):
    token = cut_off(local, b"nonsense")
    assert status(asked(local, "GET", "/blobs/00", token)) == 401
    with pytest.raises(LoginRefused, match="broke the rules"):
        logged_in(local)


def test_a_client_that_is_revoked_while_it_is_connected_is_cut_off(tmp_path):
    folder = enrol(tmp_path, 2)
    local = LocalServer(folder, mutual=False)
    gone, stays = local.join(1, Silent()), local.join(2, Silent())
    Authority(folder / "authority", datetime.now(UTC)).revoke("c1", "left")
    publish(folder)
    assert local.door.revoked() == {1}
    local.server.dismiss(local.door.revoked())
    with pytest.raises(LoginRefused, match="revoked"):
        gone.result(HANG)
    assert not stays.done()
    with pytest.raises(LoginRefused, match="revoked"):
        local.stay("c1", Silent()).result(HANG)
    local.close()


def test_a_client_does_not_go_where_a_server_sends_it(local, folder):
    """The trap stands for a machine that only the client can reach."""
    trapped = []

    async def trap(reader, writer):
        trapped.append(await reader.read(1))
        writer.close()

    async def send_elsewhere(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n" % port)
        await writer.drain()
        writer.close()

    async def lure():
        nonlocal port
        behind = await asyncio.start_server(trap, "127.0.0.1", 0)
        port = behind.sockets[0].getsockname()[1]
        own = login.server_context(load_server_identity(folder / "server.key", datetime.now(UTC)), mutual=False)
        hostile = await asyncio.start_server(send_elsewhere, "127.0.0.1", 0, ssl=own)
        with pytest.raises(InputError, match="broke"):
            await participant(local, port=hostile.sockets[0].getsockname()[1]).stay(once=True)
        for one in (hostile, behind):
            one.close()
            await one.wait_closed()

    port = 0
    local.run(lure())
    assert not trapped


def test_one_client_has_few_transfers_at_once(local):
    token = logged_in(local)
    digest = local.server.blobs.offer(bytes(32 << 20)).digest.hex()
    slow = [asked(local, "GET", f"/blobs/{digest}", token) for _ in range(intake.CLIENT_SLOTS)]
    for connection in slow:
        assert connection.recv(12) == b"HTTP/1.1 200"  # and reads no more
    assert status(asked(local, "GET", f"/blobs/{digest}", token)) == 503
    for connection in slow:
        connection.close()


class Uploads:
    """A client that puts its vector as the test says."""

    def __init__(self, local):
        self.local = local

    def open(self):
        """Log in, be asked for a vector, and announce it; return the token and the id of the request."""

        async def announce():
            client = participant(self.local)
            self.session = new_session()
            async with await client._opened(self.session, "/login") as socket:
                welcome = await client._log_in(socket)
            headers = {"Authorization": f"Bearer {welcome.token.hex()}"}
            self.socket = await client._opened(self.session, "/control", headers)
            return welcome.token.hex()

        token = self.local.run(announce())
        self.local.server.wait(lambda there: 1 in there, HANG)
        self.answer(Begin(PARAMETERS), Joined(), None)
        self.replies = self.local.server.perform(self.local.server.exchange({1: Contribute(0)}))
        return token, self.answer(None, Contribution(0, VECTOR), Beside(len(VECTOR), seal(VECTOR)))

    def answer(self, request, reply, beside):
        if request is not None:
            replies = self.local.server.perform(self.local.server.exchange({1: request}))

        async def reply_to():
            asked = wire.decode((await self.socket.receive()).data, FromServer)
            await self.socket.send_bytes(wire.encode(Answered(asked.id, wire.encode(reply), beside)))
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
def uploads(local):
    client = Uploads(local)
    yield client
    client.close()


def test_a_body_is_taken_as_it_is_whatever_encoding_it_claims(local, uploads):
    token, id = uploads.open()
    connection = asked(local, "PUT", f"/vectors/{id}", token, Content_Length=len(VECTOR), Content_Encoding="gzip")
    connection.sendall(VECTOR)
    assert status(connection) == 204
    ((_, reply),) = uploads.replies
    assert bytes(reply.vector) == VECTOR


def test_a_body_that_nobody_waits_for_any_more_frees_its_place(local, uploads):
    token, id = uploads.open()
    connection = asked(local, "PUT", f"/vectors/{id}", token, Content_Length=len(VECTOR))
    connection.sendall(VECTOR[:4])
    held = local.server.intake

    async def begun():
        while (body := held._expected.get((1, id))) is None or body.received < 4:
            await asyncio.sleep(0)

    async def given_up():
        local.server.exchange.leave(1)

    local.server.perform(begun())
    local.server.perform(given_up())
    assert list(uploads.replies) == []
    connection.sendall(VECTOR[4:8])
    assert status(connection) in (404, 422)
    assert held._receiving == 0


def test_a_load_balancer_that_ends_tls_is_named_by_its_certificate(folder, tmp_path):
    """The client sees the certificate of the balancer, the server another connection."""
    joined(Authority(folder / "authority", datetime.now(UTC)), tmp_path / "balancer.key", hosts=("localhost",))
    own = to_der(load_server_identity(tmp_path / "balancer.key", datetime.now(UTC)).certificate)
    client = load_identity(folder / "c1.key", datetime.now(UTC))
    local = LocalServer(folder, mutual=False)
    challenge = login.challenge()
    answered = login.answer(challenge, client, own)
    with pytest.raises(LoginRefused, match="load balancer"):
        local.door.admit(None, challenge, answered)
    told = replace(local.door, balancers=(tmp_path / "balancer.cert",))
    assert told.admit(None, challenge, answered) == 1
    local.close()
