"""Senders that mean harm: each is cut off, while honest clients go on and the server's memory stays flat."""

import asyncio
import contextlib
import resource
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import aiohttp
import pytest

from dordis import wire
from dordis.errors import DordisError
from dordis.federation.authority import Authority
from dordis.federation.identity import load_identity
from dordis.network import bulk
from dordis.network.doors import FederationPass
from dordis.network.messages import MACHINE_BYTES, SUBPROTOCOL, Answered, Asked, Beside, Challenge, FromServer, Hello
from dordis.protocols.plaintext.messages import Begin, Contribute, Joined
from tests.network.federation import enrol, publish
from tests.network.local import HANG, LocalServer, drain_connections
from tests.network.test_server import PARAMETERS, SIZE, Answers, to_all

pytestmark = pytest.mark.network

THREADS = ThreadPoolExecutor(4)
HONEST = range(1, 11)
VILLAIN = 11
FLAT = 64 << 20
"""Bytes that the process may grow by: it holds eleven clients, too."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return enrol(tmp_path_factory.mktemp("federation"), VILLAIN)


@pytest.fixture
def local(folder, monkeypatch):
    monkeypatch.setattr("tests.network.test_server.VECTORS", dict.fromkeys(range(1, VILLAIN + 1), bytes(SIZE)))
    server = LocalServer(folder, stage=HANG, train=HANG, grace=0.0)
    for u in HONEST:
        server.join(u, Answers(u))
    yield server
    server.close()


class Villain:
    """A client with an identity that it misuses, on a loop of its own."""

    def __init__(self, local, credentials=None):
        own = local.folder / f"c{VILLAIN}.key"
        self.local = local
        self.credentials = credentials or FederationPass(load_identity(own, datetime.now(UTC)))
        self.ended = self.asked = self.welcome = None

    @property
    def base(self):
        return f"https://localhost:{self.local.server.port}"

    async def act(self, deed):
        """Log in, and do something; return when the server has cut the connection, and how."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANG)) as session:
            options = {"protocols": (SUBPROTOCOL,), "ssl": self.credentials.context}
            async with session.ws_connect(f"{self.base}/login", **options) as socket:
                challenge = wire.decode((await socket.receive()).data, FromServer)
                assert isinstance(challenge, Challenge)
                await socket.send_bytes(wire.encode(Hello(b"", bytes(MACHINE_BYTES))))
                self.welcome = wire.decode((await socket.receive()).data, FromServer)
            async with session.ws_connect(f"{self.base}/control", headers=self.headers(), **options) as socket:
                return await deed(self, session, socket)

    async def request(self, socket):
        asked = wire.decode((await socket.receive()).data, FromServer)
        assert isinstance(asked, Asked)
        return asked

    def headers(self, **more):
        return {"Authorization": f"Bearer {self.welcome.token.hex()}", **more}

    def start(self, deed):
        return THREADS.submit(asyncio.run, self._acted(deed))

    async def _acted(self, deed):
        try:
            return await self.act(deed)
        finally:
            await drain_connections()


def honest_round(local, clients=(*HONEST, VILLAIN)):
    """Ask everybody for a vector; the honest ones answer."""
    return local.server.perform(local.server.exchange(to_all(Contribute(0), clients)))


def coming(local, client, monkeypatch):
    """Return an event that is set when a client is connected, and stays set: it may be cut off before anybody looks."""
    came, connected = threading.Event(), local.server.exchange.connected

    def connect(u):
        if u == client:
            came.set()
        return connected(u)

    monkeypatch.setattr(local.server.exchange, "connected", connect)
    return came


async def closed(socket):
    """Return the code with which the server closed a connection."""
    while (message := await socket.receive()).type not in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED):
        assert message.type is not aiohttp.WSMsgType.ERROR
    return socket.close_code


async def huge_body(villain, session, socket):
    """Announce what is allowed, and send a body of ten gigabytes."""
    begun = await villain.request(socket)
    await socket.send_bytes(wire.encode(Answered(begun.id, wire.encode(Joined()))))
    asked = await villain.request(socket)
    await socket.send_bytes(wire.encode(Answered(asked.id, b"", Beside(SIZE, bulk.seal(bytes(SIZE))))))
    headers = villain.headers(**{"Content-Length": str(10 << 30)})

    async def endless():
        while True:
            yield bytes(1 << 20)

    url = f"{villain.base}/vectors/{asked.id}"
    try:
        async with session.put(url, data=endless(), headers=headers, ssl=villain.credentials.context) as answer:
            return answer.status
    except (aiohttp.ClientError, OSError):
        return "cut"


async def huge_announcement(villain, session, socket):
    """Announce ten gigabytes."""
    begun = await villain.request(socket)
    await socket.send_bytes(wire.encode(Answered(begun.id, wire.encode(Joined()))))
    asked = await villain.request(socket)
    await socket.send_bytes(wire.encode(Answered(asked.id, b"", Beside(10 << 30, bulk.seal(b"")))))
    return await closed(socket)


async def one_byte_at_a_time(villain, session, socket):
    """Send what was announced, a byte at a time, and so slowly that it never ends."""
    begun = await villain.request(socket)
    await socket.send_bytes(wire.encode(Answered(begun.id, wire.encode(Joined()))))
    asked = await villain.request(socket)
    await socket.send_bytes(wire.encode(Answered(asked.id, b"", Beside(SIZE, bulk.seal(bytes(SIZE))))))
    headers = villain.headers(**{"Content-Length": str(SIZE)})

    async def slowly():
        while True:
            yield b"x"
            await asyncio.sleep(0.02)

    url = f"{villain.base}/vectors/{asked.id}"
    try:
        async with session.put(url, data=slowly(), headers=headers, ssl=villain.credentials.context) as answer:
            return answer.status
    except (aiohttp.ClientError, OSError):
        return "cut"


async def a_million_frames(villain, session, socket):
    """Send tiny frames that nobody asked for, as fast as the connection takes them."""
    frame = wire.encode(Answered(10**6, b""))
    try:
        for _ in range(10**6):
            await socket.send_bytes(frame)
            await asyncio.sleep(0)
    except (aiohttp.ClientError, ConnectionError):
        pass
    return await closed(socket)


async def a_replayed_frame(villain, session, socket):
    """Answer twice."""
    begun = await villain.request(socket)
    for _ in range(2):
        await socket.send_bytes(wire.encode(Answered(begun.id, wire.encode(Joined()))))
    return await closed(socket)


async def a_frame_of_another_time(villain, session, socket):
    """Answer the next request before it is made."""
    begun = await villain.request(socket)
    await socket.send_bytes(wire.encode(Answered(begun.id + 10**3, wire.encode(Joined()))))
    return await closed(socket)


async def a_second_hello(villain, session, socket):
    """Say who one is again."""
    await socket.send_bytes(wire.encode(Hello(b"", bytes(MACHINE_BYTES))))
    return await closed(socket)


async def a_frame_that_is_too_long(villain, session, socket):
    """Send a frame of more bytes than any that a round needs."""
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        await socket.send_bytes(bytes(2 << 20))
    return await closed(socket)


DEEDS = {
    huge_body: {413, "cut"},
    huge_announcement: {1008},
    one_byte_at_a_time: {408, "cut"},
    a_million_frames: {1008, 1006},
    a_replayed_frame: {1008},
    a_frame_of_another_time: {1008},
    a_second_hello: {1008},
    a_frame_that_is_too_long: {1009, 1008, 1006},
}


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_a_hostile_sender_is_cut_off_and_honest_clients_go_on(local, deed, monkeypatch):
    monkeypatch.setattr(bulk, "STALL", 0.3)
    villain = Villain(local)
    came = coming(local, VILLAIN, monkeypatch)
    act = villain.start(deed)
    act.add_done_callback(lambda _: came.set())
    assert came.wait(HANG)
    assert not act.done() or act.exception() is None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = local.server.perform(local.server.exchange(to_all(Begin(PARAMETERS), (*HONEST, VILLAIN))))
    answered = {u for u, _ in began}
    assert answered.issuperset(HONEST)
    vectors = honest_round(local)
    got = set()
    while not got.issuperset(HONEST):
        got.add(next(vectors)[0])
    assert act.result(HANG) in DEEDS[deed]
    assert VILLAIN not in got
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < FLAT
    local.server.exchange._loop.call_soon_threadsafe(local.server.exchange.leave, VILLAIN)
    assert VILLAIN not in {u for u, _ in vectors}
    assert {u for u, _ in honest_round(local, HONEST)} == set(HONEST)


def test_whoever_broke_the_rules_is_not_let_in_again_at_once(local):
    assert Villain(local).start(a_second_hello).result(HANG) == 1008

    async def again(villain, session, socket):
        return await closed(socket)

    with pytest.raises((DordisError, TypeError, AssertionError, AttributeError)):
        Villain(local).start(again).result(HANG)
    assert VILLAIN not in local.server.connected()


def test_a_revoked_identity_is_refused_while_the_others_go_on(tmp_path):
    folder = enrol(tmp_path, 3)
    local = LocalServer(folder, stage=HANG, grace=0.0)
    for u in (1, 2):
        local.join(u, Answers(u))
    Authority(folder / "authority", datetime.now(UTC)).revoke("c3", "left")
    publish(folder)
    with pytest.raises(DordisError, match="revoked"):
        local.stay("c3", Answers(3)).result(HANG)
    assert local.ask(to_all(Begin(PARAMETERS), (1, 2))).keys() == {1, 2}
    local.close()


async def _upload(local, headers, size):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with aiohttp.ClientSession() as session:
        url = f"https://localhost:{local.server.port}/vectors/1"
        own = FederationPass(load_identity(local.folder / f"c{VILLAIN}.key", datetime.now(UTC))).context
        async with session.put(url, data=bytes(size), headers=headers, ssl=own) as answer:
            return answer.status


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer " + "0" * 64}, {"Authorization": "Bearer x"}])
def test_a_body_without_a_token_of_the_connection_is_refused(local, headers):
    assert local.run(_upload(local, headers, 1000)) == 401
