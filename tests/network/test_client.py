"""A client's connection: proxies, redirects, garbage from the server, errors, and the end of a run."""

import asyncio
import socket
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pytest
from aiohttp import WSMsgType

from dordis import wire
from dordis.config import reading
from dordis.errors import InputError, LoginRefused, ParametersRefused, UnexpectedRequest
from dordis.identity.authority import Authority
from dordis.identity.keys import load_client_credentials, load_server_credentials
from dordis.network import authentication, client, client_transfers, messages
from dordis.network.authentication import ExpiryWatch, LoginCredentials
from dordis.network.client_transfers import Address
from dordis.network.download_endpoint import split_body
from dordis.network.messages import BodyInfo, Challenge, Request, Shutdown, Welcome
from dordis.protocols.assisted import ASSISTED
from dordis.protocols.assisted.messages import Introduce
from dordis.protocols.delivery import Dispatch, Received
from dordis.protocols.plaintext import PLAINTEXT, Begin, Contribute, Joined
from dordis.rounds.client import Client
from dordis.rounds.invitation import Train
from tests.network.assisted_run import assisted_keys
from tests.network.deployed_commands import wait_until
from tests.network.local_server import HANG, PARAMETERS, VECTORS, LocalServer, ScriptedParty, enrol, to_clients
from tests.network.process_roles import settings
from tests.network.proxies import ConnectProxy, FaultyProxy
from tests.network.raw_client import participant
from tests.rounds.parties import DIM, Diarist, Witness, invite_to
from tests.runs.parties import joined

pytestmark = pytest.mark.network

PAST = datetime.now(UTC) - timedelta(days=30)


async def send_bytes(socket):
    await socket.send_bytes(b"\xffgarbage")


async def send_nothing(socket):
    await socket.send_bytes(b"")


async def send_altered(socket):
    await socket.send_bytes(wire.encode(Challenge(bytes(32))) + b"x")


async def send_out_of_turn(socket):
    await socket.send_bytes(wire.encode(Welcome(1, bytes(32), b"", bytes(32))))


async def send_text(socket):
    await socket.send_str("garbage")


async def send_no_frame(socket):
    socket._req.transport.write(b"\xff" * 64)


GARBAGE = [send_bytes, send_nothing, send_altered, send_out_of_turn, send_text, send_no_frame]


@pytest.fixture
def pauses(monkeypatch):
    """Record the pauses of a client, which do not wait, but for the twelfth, which never ends."""
    waited = []

    async def wait(seconds):
        waited.append(seconds)
        if len(waited) >= 12:
            await asyncio.Event().wait()

    monkeypatch.setattr(client, "wait_to_reconnect", wait)
    return waited


@pytest.fixture
def warnings(caplog):
    caplog.set_level("WARNING", "dordis.network")
    return lambda: [record.getMessage() for record in caplog.records if "try again" in record.getMessage()]


def spoil(local, monkeypatch, send, times):
    """Let the server send garbage on the first `times` control connections, until the client leaves."""
    serve, spoilt = local.server._serve, []

    async def spoiling(session):
        if len(spoilt) >= times:
            await serve(session)
            return
        spoilt.append(session)
        await send(session.socket)
        with suppress(ConnectionError):
            while (await session.socket.receive()).type not in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.ERROR):
                pass
        local.server._sessions.remove(session)

    monkeypatch.setattr(local.server, "_serve", spoiling)
    return spoilt


@pytest.mark.parametrize("send", GARBAGE, ids=lambda send: send.__name__)
def test_a_client_reconnects_after_garbage_and_logs_one_line(local, monkeypatch, pauses, warnings, send):
    spoil(local, monkeypatch, send, 3)
    task = local.stay("c1", ScriptedParty(1), once=False)
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert not task.done()
    assert pauses == [client_transfers.FIRST_PAUSE * 2**i for i in range(3)]
    assert len(warnings()) == 3
    assert all("\n" not in line and f"left localhost:{local.server.port}" in line for line in warnings())


def test_a_server_that_sends_nothing_but_garbage_does_not_make_a_client_spin(local, monkeypatch, pauses, warnings):
    spoilt = spoil(local, monkeypatch, send_bytes, 10**6)
    task = local.stay("c1", ScriptedParty(1), once=False)
    while len(pauses) < 12:
        assert not task.done()
        local.run(asyncio.sleep(0.01))
    assert pauses == [min(client_transfers.FIRST_PAUSE * 2**i, client_transfers.LONGEST_PAUSE) for i in range(12)]
    assert pauses[-1] == client_transfers.LONGEST_PAUSE
    assert len(spoilt) == len(warnings()) == 12


def test_a_client_reconnects_after_garbage_in_the_log_in(local, monkeypatch, pauses, warnings):
    authenticate, spoilt = local.server._authenticate, []

    async def garbage(request, socket):
        if len(spoilt) >= 2:
            return await authenticate(request, socket)
        spoilt.append(request)
        await (send_bytes if len(spoilt) == 1 else send_out_of_turn)(socket)
        return await authenticate(request, socket)

    monkeypatch.setattr(local.server, "_authenticate", garbage)
    local.stay("c1", ScriptedParty(1), once=False)
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert pauses == [client_transfers.FIRST_PAUSE, 2 * client_transfers.FIRST_PAUSE]
    assert len(warnings()) == 2


def test_pauses_start_anew_after_a_connection_on_which_a_request_was_handled(local, pauses):
    proxy = FaultyProxy(local.server.port)
    local.stay("c1", ScriptedParty(1), once=False, port=proxy.port)
    for _ in range(4):
        assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
        proxy.cut()
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert pauses == [client_transfers.FIRST_PAUSE] * 4
    proxy.close()


def test_idle_parties_announce_the_end_of_their_certificates(serving, folder, monkeypatch, caplog):
    """Nothing happens but that the days pass: no round at the server, and no server for the client."""
    monkeypatch.setattr(authentication, "DAY", 0.01)
    now = [datetime.now(UTC)]
    local = serving(folder, clock=lambda: now[0])
    own = LoginCredentials(load_client_credentials(folder / "c1.key", now[0]))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = Address("localhost", closed.getsockname()[1])
    watch = ExpiryWatch("this client's", lambda: now[0])
    staying = asyncio.run_coroutine_threadsafe(
        client.Participant(nowhere, own, None, PLAINTEXT, expiry=watch).stay(), local.loop
    )
    now[0] = own.certificate.not_valid_after_utc - timedelta(days=29)
    for whose in ("the server's", "this client's"):
        wait_until(lambda whose=whose: f"{whose} certificate expires in " in caplog.text)
    staying.cancel()


def test_a_client_that_joins_once_ends_with_an_error(local, monkeypatch):
    spoil(local, monkeypatch, send_bytes, 1)
    with pytest.raises(InputError, match="failed or broke"):
        local.stay("c1", ScriptedParty(1)).result(HANG)


def test_clients_use_the_proxy_of_the_environment(local, monkeypatch):
    """At the port that the client is told there is nobody: only the proxy knows a way."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = closed.getsockname()[1]
    proxy = ConnectProxy(local.server.port)
    local.run(proxy.start())
    for name in ("NO_PROXY", "no_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
    local.join(1, ScriptedParty(1), port=nowhere)
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert local.ask_vector(1) == VECTORS[1]
    assert local.ask({1: Dispatch(0, 7, b"sum")}) == {1: Received(0)}
    assert set(proxy.asked) == {f"CONNECT localhost:{nowhere} HTTP/1.1"}
    assert len(proxy.asked) >= 3  # log-in, control, and what travels beside it
    local.run(proxy.close())


@pytest.mark.parametrize("proxy", ["closed", "plain", "no address"])
def test_a_client_says_that_its_proxy_fails(local, monkeypatch, caplog, proxy):
    plain = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=answer_in_plain, args=(plain,), daemon=True).start()
    for name in ("NO_PROXY", "no_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    ports = {"closed": 1, "plain": plain.getsockname()[1]}
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{ports[proxy]}" if proxy in ports else proxy)
    with pytest.raises(InputError, match="failed or broke"):
        local.stay("c1", ScriptedParty(1)).result(HANG)
    plain.close()
    assert f"no connection to localhost:{local.server.port}: the proxy in HTTPS_PROXY failed: " in caplog.text


def test_a_client_follows_no_redirect(challenging, folder):
    """`trap` stands for a machine that only the client can reach."""
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
        identity = load_server_credentials(folder / "server.key", datetime.now(UTC))
        own = authentication.server_context(identity, mutual=False)
        hostile = await asyncio.start_server(send_elsewhere, "127.0.0.1", 0, ssl=own)
        with pytest.raises(InputError, match="failed or broke"):
            await participant(challenging, port=hostile.sockets[0].getsockname()[1]).stay(once=True)
        for one in (hostile, behind):
            one.close()
            await one.wait_closed()

    port = 0
    challenging.run(lure())
    assert not trapped


def test_a_client_handles_one_chunk_while_the_sum_of_another_is_downloaded(local, monkeypatch):
    party, go, total = ScriptedParty(1), asyncio.Event(), bytes(3 << 20)

    async def held(data, start):
        await go.wait()
        async for piece in split_body(data, start):
            yield piece

    monkeypatch.setattr("dordis.network.download_endpoint.split_body", held)
    local.join(1, party)
    local.ask({1: Begin(PARAMETERS)})
    pending = local.send({1: Dispatch(1, 7, total)})
    assert local.ask({1: Contribute(0)}).keys() == {1}
    assert not any(isinstance(request, Dispatch) for request in party.asked)
    local.server._loop.call_soon_threadsafe(go.set)
    assert dict(pending) == {1: Received(1)}
    assert isinstance(party.asked[-1], Dispatch)


def test_a_body_of_a_message_that_has_none_is_not_downloaded():
    downloaded = []

    async def download(body):
        downloaded.append(body)
        return b""

    async def handle():
        helper = client.Participant(Address("localhost", 1), None, None, ASSISTED)
        request = Request(1, wire.encode(Introduce(bytes(40))), BodyInfo.from_upload(bytes(10)))
        await helper._handle(SimpleNamespace(download=download), SimpleNamespace(handle=None), request)

    with pytest.raises(UnexpectedRequest, match="Introduce came with a body of 10 bytes"):
        asyncio.run(handle())
    assert not downloaded


def test_a_client_ends_when_the_run_is_over(local):
    task = local.join(1, ScriptedParty(1))
    local.server.perform(local.server._close(Shutdown(run_over=True)))
    assert task.result(HANG) is None


@pytest.mark.parametrize("failure", [MemoryError("the model has 16 GiB"), RuntimeError("secret"), RecursionError()])
def test_no_error_in_a_round_ends_a_client_or_is_sent_to_the_server(local, failure, caplog):
    party = ScriptedParty(1)
    answer, failures = party.handle, [failure]

    def failing(request):
        if failures:
            raise failures.pop()
        return answer(request)

    party.handle = failing
    task = local.join(1, party)
    assert local.ask({1: Begin(PARAMETERS)}) == {}
    ((_, error),) = local.server.exchange.errors
    assert str(error) == "the client declined: ''"
    assert "please report this" in caplog.text  # its owner finds the error in the log
    local.begin_round()
    assert local.ask({1: Begin(PARAMETERS)}) == {1: Joined()}
    assert not task.done()


def test_another_version_is_refused_in_the_handshake(local, monkeypatch, caplog):
    local.join_all(1, 2, 3)
    monkeypatch.setattr("dordis.network.client.SUBPROTOCOL", "dordis.9.9")
    with pytest.raises(LoginRefused, match=messages.SUBPROTOCOL):
        local.stay("c4", ScriptedParty(4)).result(HANG)
    assert any("another version" in record.message for record in caplog.records)
    assert local.ask(to_clients(Begin(PARAMETERS))).keys() == {1, 2, 3}


def test_a_client_that_shows_no_certificate_is_refused_by_mutual_tls(local, caplog):
    with pytest.raises(InputError, match="failed or broke"):
        local.stay("c1", ScriptedParty(1), mutual=False).result(HANG)
    assert "requires a client certificate, and none was shown: use login = 'mutual'; reconnecting" in caplog.text


def test_a_client_that_expects_mutual_tls_is_told_that_the_server_asks_a_challenge(challenging):
    with pytest.raises(LoginRefused, match=r"join with deployment\.login = 'challenge'"):
        challenging.stay("c1", ScriptedParty(1), mutual=True).result(HANG)


@pytest.mark.parametrize("command", ["join", "visit", "assist"])
def test_commands_say_why_tls_fails(processes, serving, folder, tmp_path, command):
    """All the commands of clients and helpers, with real sockets."""
    own, other = enrol(tmp_path / "own", 8), enrol(tmp_path / "other", 1)
    trusted = ("--trusted", str(folder / "authority" / "ca.pem"))
    keys = {"visit": ["federation.clients=4", *assisted_keys(4, 4, 3)]}
    (own / "run.toml").write_text(
        reading.config_to_toml(settings(keys.get(command, ["federation.clients=8", "federation.per_round=8"])))
    )
    plain = socket.create_server(("localhost", 0))
    threading.Thread(target=answer_in_plain, args=(plain,), daemon=True).start()
    elsewhere = serving(other)
    (own / "server.key").unlink()
    joined(Authority(own / "authority", datetime.now(UTC)), own / "server.key", hosts=("other.example",))
    misnamed = serving(own)

    def said(port, *arguments):
        """Return what a command says until it ends, or until it has said why it reconnects."""
        (log := tmp_path / f"{command}{port}.log").touch()
        files = ["--identity", "c1.key"] + ([] if command == "assist" else ["--config", "run.toml"])
        name = "assist" if command == "assist" else "join"
        words = [name, f"https://localhost:{port}", *files, *arguments]
        pid = processes.start("command", log, arguments=words, folder=own)
        wait_until(lambda: not processes.is_running(pid) or "no connection to" in log.read_text())
        processes.kill(pid)
        return log.read_text().splitlines()[-1]

    refused = "dordis: the server's certificate is not accepted: "
    assert said(elsewhere.server.port).startswith(
        refused + "the certificate was signed by another authority: it belong"
    )
    assert said(misnamed.server.port).startswith(refused + "the server's certificate is for another host name: use one")
    assert "the other side does not speak TLS: check that the address" in said(plain.getsockname()[1])
    assert "the other side does not know the authority of this certificate" in said(
        serving(folder).server.port, *trusted
    )
    (own / "c1.cert").write_bytes(Authority(own / "authority", PAST).issue("c1", days=1).pem)
    assert "expired" in said(misnamed.server.port)
    plain.close()


def answer_in_plain(listener):
    """Answer every connection by HTTP without TLS, until the listener is closed."""
    with suppress(OSError):
        while True:
            accepted, _ = listener.accept()
            with suppress(OSError), accepted:
                accepted.recv(1 << 12)
                accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


class Leaving(Client):
    """A client that sets an event when it leaves a round."""

    def __init__(self, u):
        super().__init__(u, Diarist(np.zeros(DIM), []), Witness([]), PLAINTEXT)
        self.left = threading.Event()

    def close(self):
        super().close()
        if self.round is not None:
            self.left.set()


def test_a_round_without_requests_is_left(local):
    party = Leaving(1)
    local.join(1, party, silence=0.0)
    assert local.ask({1: invite_to(PARAMETERS)})[1].selected
    assert party.left.wait(HANG)
    assert local.ask({1: Train()}) == {}


@pytest.mark.parametrize("over", [True, False])
def test_a_round_is_left_when_the_run_is_over_and_not_when_the_server_stops(folder, over):
    server, party = LocalServer(folder), Leaving(1)
    staying = server.join(1, party)
    assert server.ask({1: invite_to(PARAMETERS)})[1].selected
    server.server.stop(run_over=over)
    staying.result(HANG)
    assert party.left.is_set() is over
    server.server.stop = lambda: None
    server.close()


@pytest.mark.parametrize("follow", [True, False])
def test_a_client_that_follows_waits_for_a_run_that_its_owner_agrees_to(local, folder, pauses, caplog, follow):
    refusals, agreed = [ParametersRefused("the run has another epsilon")], threading.Event()

    def create_party(welcome):
        if refusals:
            raise refusals.pop()
        agreed.set()
        return ScriptedParty(1)

    own = LoginCredentials(load_client_credentials(folder / "c1.key", datetime.now(UTC)), local.mutual)
    made = client.Participant(Address("localhost", local.server.port), own, create_party, PLAINTEXT)
    staying = asyncio.run_coroutine_threadsafe(made.stay(follow=follow), local.loop)
    local._tasks.append(staying)
    if follow:
        wait_until(lambda: agreed.is_set() or staying.done())
        assert "waiting for the next run: the run has another epsilon" in caplog.text
        assert len(pauses) == 1
    else:
        with pytest.raises(ParametersRefused, match="another epsilon"):
            staying.result(HANG)


def test_a_client_that_reconnects_is_not_sent_the_manifest_again_unless_it_was_restarted(serving, folder, monkeypatch):
    local, shown = serving(folder, manifest=b"manifest"), []
    authenticate, proxy = local.server._authenticate, FaultyProxy(local.server.port)

    async def record(request, socket):
        shown.append(await authenticate(request, socket))
        return shown[-1]

    monkeypatch.setattr(local.server, "_authenticate", record)
    first = local.join(1, ScriptedParty(1), port=proxy.port, once=False)
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    proxy.cut()
    assert local.ask({1: Dispatch(0, 7, b"sum")}) == {1: Received(0)}
    first.cancel()
    local.server.wait(lambda clients: not clients, HANG)
    local.join(1, ScriptedParty(1))
    assert [one.manifest for one in (shown[0], shown[1], shown[-1])] == [b"manifest", b"", b"manifest"]
    proxy.close()


def test_a_run_that_ends_while_a_request_is_handled_leaves_no_secrets(local, monkeypatch):
    begun, go, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow(ScriptedParty):
        """A client that handles a request until it may go on, and then closes its round."""

        def check_expected(self, kind, size=0):
            pass

        def handle(self, request):
            begun.set()
            assert go.wait(HANG)
            assert not closed.is_set()
            return super().handle(request)

        def close(self):
            closed.set()

    monkeypatch.setattr(client, "Client", Slow)
    task = local.join(1, Slow(1))
    local.send({1: Begin(PARAMETERS)})
    assert begun.wait(HANG)
    local.server.perform(local.server._close(Shutdown(run_over=True)))
    task.result(HANG)
    assert not closed.is_set()
    go.set()
    assert closed.wait(HANG)
