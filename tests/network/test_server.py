"""The server: log-ins that are refused, revocations, and senders that violate the protocol."""

import asyncio
import contextlib
import resource
import secrets
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

from dordis import wire
from dordis.errors import InputError, LoginRefused
from dordis.identity.authority import Authority
from dordis.identity.certificates import to_der
from dordis.identity.keys import load_client_credentials, load_server_credentials
from dordis.network import authentication, upload_endpoint
from dordis.network.client import new_session
from dordis.network.deployed_rounds import NetworkRounds
from dordis.network.deployment import explain_exclusions
from dordis.network.messages import MACHINE_BYTES, POLICY_VIOLATION, BodyInfo, Hello, Reply
from dordis.protocols.plaintext import Begin, Contribute, Joined
from tests.adversary.test_mutations import take_out
from tests.case_samples import sample_cases
from tests.network.local_server import HANG, PARAMETERS, SIZE, ScriptedParty, enrol, publish, to_clients
from tests.network.raw_client import (
    ATTACKER,
    RawClient,
    SilentParty,
    log_in,
    participant,
    read_status,
    send_request,
    wait_closed,
)
from tests.runs.parties import joined

pytestmark = pytest.mark.network

HONEST = range(1, 11)
MOST_GROWTH = 64 << 20
"""Bytes by which the process may grow; it holds eleven clients, too."""
PAST = datetime.now(UTC) - timedelta(days=30)


def refused(local, name, party=None, **options):
    with pytest.raises((LoginRefused, InputError)) as refusal:
        local.stay(name, party or ScriptedParty(1), **options).result(HANG)
    return str(refusal.value)


@pytest.mark.parametrize("mutual", [True, False], ids=["mutual TLS", "challenge"])
def test_revoked_unknown_expired_and_foreign_identities_are_refused_and_others_go_on(serving, tmp_path, mutual, caplog):
    folder = enrol(tmp_path, 4)
    local = serving(folder, mutual=mutual)
    local.join_all(1, 2, 3)
    authority = Authority(folder / "authority", datetime.now(UTC))
    joined(authority, folder / "later.key")
    authority.revoke("c4", "left")
    publish(folder)
    past = Authority(folder / "authority", datetime.now(UTC) - timedelta(days=30))
    old = past.issue("c2", days=1).pem
    (tmp_path / "elsewhere").mkdir()
    enrol(tmp_path / "elsewhere", 1)
    (folder / "foreign.key").write_bytes((tmp_path / "elsewhere" / "c1.key").read_bytes())
    (folder / "foreign.key").chmod(0o600)
    (folder / "foreign.cert").write_bytes((tmp_path / "elsewhere" / "c1.cert").read_bytes())
    assert "revoked" in refused(local, "c4")
    assert "unknown" in refused(local, "later")
    assert refused(local, "foreign")
    before = len(caplog.records)
    (folder / "old.key").write_bytes((folder / "c2.key").read_bytes())
    (folder / "old.key").chmod(0o600)
    (folder / "old.cert").write_bytes(old)
    with pytest.raises((LoginRefused, InputError)):
        local.stay("old", ScriptedParty(2))
    assert len(caplog.records) >= before
    assert sum("refused" in record.message for record in caplog.records) >= 2
    assert local.ask(to_clients(Begin(PARAMETERS))).keys() == {1, 2, 3}


def expired(folder, name):
    """Give a party a certificate that was valid for one day of last month."""
    (folder / f"{name}.cert").write_bytes(Authority(folder / "authority", PAST).issue(name, days=1).pem)


@pytest.mark.parametrize("mutual", [True, False], ids=["mutual TLS", "challenge"])
def test_a_client_whose_certificate_has_expired_is_refused_and_others_go_on(serving, tmp_path, mutual, caplog):
    folder = enrol(tmp_path, 2)
    local = serving(folder, mutual=mutual)
    local.join(1, ScriptedParty(1))
    expired(folder, "c2")
    with pytest.raises((LoginRefused, InputError)) as refusal:
        local.stay("c2", ScriptedParty(2), now=PAST).result(HANG)
    if mutual:
        assert "refused a connection from 127.0.0.1: the certificate has expired: ask" in caplog.text
        assert f"no connection to localhost:{local.server.port}: a certificate has expired: ask" in caplog.text
    else:
        assert "expired" in str(refusal.value)
    assert any("refused" in record.message for record in caplog.records)
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}


def test_a_server_whose_certificate_has_expired_is_refused_by_its_clients(serving, tmp_path):
    folder = enrol(tmp_path, 1)
    expired(folder, "server")
    with pytest.raises(LoginRefused, match="expired"):
        serving(folder)
    local = serving(folder, now=PAST)
    with pytest.raises(LoginRefused, match="expired"):
        local.stay("c1", ScriptedParty(1)).result(HANG)
    assert not local.server.connected()


def test_a_load_balancer_is_accepted_by_its_certificate(serving, folder, tmp_path):
    """The client sees the certificate of the load balancer, which terminates TLS."""
    joined(Authority(folder / "authority", datetime.now(UTC)), tmp_path / "balancer.key", hosts=("localhost",))
    own = to_der(load_server_credentials(tmp_path / "balancer.key", datetime.now(UTC)).certificate)
    client = load_client_credentials(folder / "c1.key", datetime.now(UTC))
    local = serving(folder, mutual=False)
    challenge = secrets.token_bytes(32)
    answered = authentication.sign_challenge(challenge, client, own)
    with pytest.raises(LoginRefused, match="load balancer"):
        local.authenticator.authenticate(None, challenge, answered)
    listed = replace(local.authenticator, balancers=(tmp_path / "balancer.cert",))
    assert listed.authenticate(None, challenge, answered) == 1


def test_a_connected_client_that_is_revoked_is_disconnected(serving, tmp_path):
    folder = enrol(tmp_path, 2)
    local = serving(folder, mutual=False)
    gone, stays = local.join(1, SilentParty()), local.join(2, SilentParty())
    Authority(folder / "authority", datetime.now(UTC)).revoke("c1", "left")
    publish(folder)
    assert local.authenticator.revoked_members() == {1}
    local.server.disconnect_revoked(local.authenticator.revoked_members())
    with pytest.raises(LoginRefused, match="revoked"):
        gone.result(HANG)
    assert explain_exclusions(local.server.exchange.exclusions) == (
        "1 client lost their membership (revoked): the run continues without them"
    )
    assert not stays.done()
    with pytest.raises(LoginRefused, match="revoked"):
        local.stay("c1", SilentParty()).result(HANG)


def test_ready_clients_that_are_revoked_or_lost_before_the_parameters_leave_the_round(serving, tmp_path):
    folder = enrol(tmp_path, 4)
    local = serving(folder, mutual=False, grace=0.1)
    tasks = {u: local.join(u, SilentParty()) for u in range(1, 5)}
    rounds = object.__new__(NetworkRounds)
    rounds._server, rounds._authenticator = local.server, local.authenticator
    assert rounds.still_ready([1, 2, 3]) == {1, 2, 3}  # client 4 was not ready
    Authority(folder / "authority", datetime.now(UTC)).revoke("c1", "left")
    publish(folder)
    tasks[2].cancel()
    local.server.wait(lambda there: 2 not in there, HANG)
    assert rounds.still_ready([1, 2, 3]) == {3}


def cut_off(local, frame):
    """Send a frame as client 1; return its token after the server has closed the connection."""

    async def misbehave():
        client = participant(local)
        async with new_session() as session:
            async with await client._open_socket(session, "/login") as socket:
                welcome = await client._log_in(socket)
            headers = {"Authorization": f"Bearer {welcome.token.hex()}"}
            async with await client._open_socket(session, "/control", headers) as socket:
                await socket.send_bytes(frame)
                assert (await socket.receive()).data == POLICY_VIOLATION
        return welcome.token.hex()

    return local.run(misbehave())


def test_a_banned_client_has_no_token_and_cannot_log_in_for_a_while(challenging):
    token = cut_off(challenging, b"nonsense")
    assert read_status(send_request(challenging, "GET", "/blobs/00", token)) == 401
    with pytest.raises(LoginRefused, match="violated the network protocol"):
        log_in(challenging)


@pytest.fixture
def crowded(serving, folder):
    """A server with ten honest clients, and no grace for a client that disconnects."""
    local = serving(folder, grace=0.0)
    local.join_all(*HONEST)
    return local


def honest_round(local, clients=(*HONEST, ATTACKER)):
    """Request a vector from all clients; return the iterator over the replies."""
    return local.send(to_clients(Contribute(0), clients))


def coming(local, client, monkeypatch):
    """Return an event that is set when a client connects: it may be disconnected before the test looks."""
    came, connected = threading.Event(), local.server.exchange.resume_client

    def connect(u):
        if u == client:
            came.set()
        return connected(u)

    monkeypatch.setattr(local.server.exchange, "resume_client", connect)
    return came


async def huge_body(raw, session, socket):
    """Announce an allowed upload, and send ten gigabytes."""
    begun = await raw.next_request(socket)
    await socket.send_bytes(wire.encode(Reply(begun.id, wire.encode(Joined()))))
    asked = await raw.next_request(socket)
    await socket.send_bytes(wire.encode(Reply(asked.id, b"", BodyInfo.from_upload(bytes(SIZE)))))
    headers = raw.headers(**{"Content-Length": str(10 << 30)})

    async def endless():
        while True:
            yield bytes(1 << 20)

    url = f"{raw.base}/vectors/{asked.id}"
    try:
        async with session.put(url, data=endless(), headers=headers, ssl=raw.login.context) as answer:
            return answer.status
    except (aiohttp.ClientError, OSError):
        return "cut"


async def huge_announcement(raw, session, socket):
    """Announce ten gigabytes."""
    begun = await raw.next_request(socket)
    await socket.send_bytes(wire.encode(Reply(begun.id, wire.encode(Joined()))))
    asked = await raw.next_request(socket)
    await socket.send_bytes(wire.encode(Reply(asked.id, b"", BodyInfo(10 << 30, bytes(32)))))
    return await wait_closed(socket)


async def one_byte_at_a_time(raw, session, socket):
    """Send an announced upload byte by byte, so slowly that it never ends."""
    begun = await raw.next_request(socket)
    await socket.send_bytes(wire.encode(Reply(begun.id, wire.encode(Joined()))))
    asked = await raw.next_request(socket)
    await socket.send_bytes(wire.encode(Reply(asked.id, b"", BodyInfo.from_upload(bytes(SIZE)))))
    headers = raw.headers(**{"Content-Length": str(SIZE)})

    async def slowly():
        while True:
            yield b"x"
            await asyncio.sleep(0.02)

    url = f"{raw.base}/vectors/{asked.id}"
    try:
        async with session.put(url, data=slowly(), headers=headers, ssl=raw.login.context) as answer:
            return answer.status
    except (aiohttp.ClientError, OSError):
        return "cut"


async def a_million_frames(raw, session, socket):
    """Send tiny replies to no request, as fast as the connection takes them."""
    frame = wire.encode(Reply(10**6, b""))
    try:
        for _ in range(10**6):
            await socket.send_bytes(frame)
            await asyncio.sleep(0)
    except (aiohttp.ClientError, ConnectionError):
        pass
    return await wait_closed(socket)


async def a_replayed_frame(raw, session, socket):
    """Reply twice to one request."""
    begun = await raw.next_request(socket)
    for _ in range(2):
        await socket.send_bytes(wire.encode(Reply(begun.id, wire.encode(Joined()))))
    return await wait_closed(socket)


async def a_frame_of_another_time(raw, session, socket):
    """Reply to a request that was not sent yet."""
    begun = await raw.next_request(socket)
    await socket.send_bytes(wire.encode(Reply(begun.id + 10**3, wire.encode(Joined()))))
    return await wait_closed(socket)


async def a_second_hello(raw, session, socket):
    """Send a message of the log-in on the control connection."""
    await socket.send_bytes(wire.encode(Hello(b"", bytes(MACHINE_BYTES))))
    return await wait_closed(socket)


async def a_frame_that_is_too_long(raw, session, socket):
    """Send a frame longer than any of a round."""
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        await socket.send_bytes(bytes(2 << 20))
    return await wait_closed(socket)


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


@pytest.mark.parametrize("deed", sample_cases([*DEEDS], one_in=3), ids=lambda deed: deed.__name__)
def test_a_hostile_sender_is_disconnected_and_honest_clients_go_on(crowded, deed, monkeypatch):
    monkeypatch.setattr(upload_endpoint, "STALL", 0.3)
    local, raw = crowded, RawClient(crowded)
    came = coming(local, ATTACKER, monkeypatch)
    act = raw.start(deed)
    act.add_done_callback(lambda _: came.set())
    assert came.wait(HANG)
    assert not act.done() or act.exception() is None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = local.send(to_clients(Begin(PARAMETERS), (*HONEST, ATTACKER)))
    answered = {u for u, _ in began}
    assert answered.issuperset(HONEST)
    vectors = honest_round(local)
    got = set()
    while not got.issuperset(HONEST):
        got.add(next(vectors)[0])
    assert act.result(HANG) in DEEDS[deed]
    assert ATTACKER not in got
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < MOST_GROWTH
    local.server.exchange._loop.call_soon_threadsafe(local.server.exchange.exclude, ATTACKER)
    assert ATTACKER not in {u for u, _ in vectors}
    assert {u for u, _ in honest_round(local, HONEST)} == set(HONEST)


EMPTY_FRAGMENT = bytes([0x00, 0x80, 0, 0, 0, 0])
"""A masked continuation frame that has no content and does not end its message."""


async def pings(socket):
    for _ in range(5000):
        await socket.ping()


async def pongs(socket):
    for _ in range(5000):
        await socket.pong()


async def empty_fragments(socket):
    """Begin a message, and send fragments of it without content: four megabytes of headers."""
    socket._conn.transport.write(b"\x02" + EMPTY_FRAGMENT[1:])
    for _ in range(4 << 20 >> 16):
        socket._conn.transport.write(EMPTY_FRAGMENT * ((1 << 16) // 6))
        await socket._writer.protocol._drain_helper()


FLOODS = {
    pings: ["dordis.network.sessions.check_not_flooding"],
    pongs: ["dordis.network.sessions.check_not_flooding"],
    empty_fragments: ["dordis.network.sessions.check_fragments", "dordis.network.sessions.check_bytes_allowed"],
}
"""By flood, the checks without which the server reads it for ever."""


def flood(local, frames):
    """Flood the control connection of a member; return whether the server still answers on it."""

    async def deed(raw, session, socket):
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            await frames(socket)
            await socket.ping(b"last")
        while (message := await socket.receive()).type in (aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG):
            if message.data == b"last":
                return True
        return False

    return RawClient(local, autoping=False).start(deed).result(HANG)


@pytest.mark.parametrize("frames", FLOODS, ids=lambda frames: frames.__name__)
def test_a_flood_of_frames_is_cut_and_its_sender_banned(serving, folder, frames, caplog, monkeypatch):
    local = serving(folder)
    local.join_all(1, 2, 3)
    assert not flood(local, frames)
    local.server.wait(lambda clients: ATTACKER not in clients, HANG)
    assert any(f"client {ATTACKER} is banned" in record.message for record in caplog.records)
    assert "violated the network protocol" in refused(local, f"c{ATTACKER}")
    assert local.ask(to_clients(Begin(PARAMETERS))).keys() == {1, 2, 3}
    for check in FLOODS[frames]:
        take_out(monkeypatch, check)
    assert flood(serving(folder), frames)


async def one_ping(socket):
    await socket.ping()


@pytest.mark.parametrize("frames", [one_ping, empty_fragments], ids=lambda frames: frames.__name__)
def test_a_log_in_with_control_frames_or_megabytes_of_headers_is_cut(challenging, frames):
    async def log_in_noisily():
        client = participant(challenging)
        async with new_session() as session, await client._open_socket(session, "/login") as socket:
            send = socket.send_bytes

            async def noisily(data):
                await frames(socket)
                await send(data)

            socket.send_bytes = noisily
            return await client._log_in(socket)

    with pytest.raises((LoginRefused, ConnectionError)):
        challenging.run(log_in_noisily())
