"""What networks and machines do to honest clients: proxies, busy servers, old certificates, power cuts, and crowds."""

import socket
import threading
from datetime import UTC, datetime, timedelta

import pytest

from dordis.errors import InputError, LoginRefused, UnexpectedRequest
from dordis.federation.authority import Authority
from dordis.network import connections, intake, lines, transfers
from dordis.protocols.delivery import Dispatch, Received, Store
from dordis.protocols.plaintext.messages import Begin, Contribute
from tests.network.federation import enrol
from tests.network.local import HANG, LocalServer
from tests.network.proxy import Proxy
from tests.network.relay import Relay
from tests.network.test_server import PARAMETERS, VECTORS, Answers, to_all

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return enrol(tmp_path_factory.mktemp("federation"), 3)


@pytest.fixture
def serving():
    """Start servers that are closed in the end, however a test ends."""
    servers = []

    def start(folder, **options):
        servers.append(LocalServer(folder, **{"stage": HANG, "train": HANG, "grace": HANG} | options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def local(serving, folder):
    return serving(folder)


def vector_of(local, u):
    ((sender, reply),) = local.server.perform(local.server.exchange({u: Contribute(0)}))
    return sender, bytes(reply.vector)


def test_clients_go_through_the_proxy_that_the_environment_names(local, monkeypatch):
    """At the port that the client is told there is nobody: only the proxy knows a way."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = closed.getsockname()[1]
    proxy = Proxy(local.server.port)
    local.run(proxy.start())
    for name in ("NO_PROXY", "no_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
    local.join(1, Answers(1), port=nowhere)
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert vector_of(local, 1) == (1, VECTORS[1])
    assert local.ask({1: Dispatch(0, 7, b"sum")}) == {1: Received(0)}
    assert set(proxy.asked) == {f"CONNECT localhost:{nowhere} HTTP/1.1"}
    assert len(proxy.asked) >= 3  # log-in, control, and what travels beside it
    local.run(proxy.close())


@pytest.mark.parametrize("limit", ["SLOTS", "CLIENT_SLOTS"])
def test_a_client_comes_again_when_a_busy_server_says_so(local, monkeypatch, limit):
    waited, most = [], getattr(intake, limit)
    monkeypatch.setattr(intake, "RETRY", {"Retry-After": "7"})
    monkeypatch.setattr(intake, limit, 0)

    async def wait(seconds):
        waited.append(seconds)
        if len(waited) > transfers.TRIES:  # to be busy is no failure, however often
            monkeypatch.setattr(intake, limit, most)

    monkeypatch.setattr(transfers, "wait", wait)
    local.join(1, Answers(1))
    local.ask({1: Begin(PARAMETERS)})
    assert vector_of(local, 1) == (1, VECTORS[1])
    assert waited == [7.0] * (transfers.TRIES + 1)


def test_what_is_fetched_is_fetched_again_when_a_busy_server_says_so(local, monkeypatch):
    waited, most = [], intake.CLIENT_SLOTS
    monkeypatch.setattr(intake, "CLIENT_SLOTS", 0)

    async def wait(seconds):
        waited.append(seconds)
        monkeypatch.setattr(intake, "CLIENT_SLOTS", most)

    monkeypatch.setattr(transfers, "wait", wait)
    local.join(1, Answers(1))
    assert local.ask({1: Dispatch(0, 7, b"sum")}) == {1: Received(0)}
    assert waited == [1.0]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("7", 7.0), ("86400", transfers.LONGEST_PAUSE), ("soon", 30.0), ("", 30.0), ("0", transfers.FIRST_PAUSE)],
)
def test_a_client_waits_as_long_as_it_is_told_within_reason(given, seconds):
    with pytest.raises(transfers.Busy) as busy:
        transfers.check_not_busy(503, {"Retry-After": given})
    assert busy.value.seconds == seconds
    transfers.check_not_busy(204, {})


PAST = datetime.now(UTC) - timedelta(days=30)


def expired(folder, name):
    """Give a party a certificate of last month, for one day."""
    (folder / f"{name}.cert").write_bytes(Authority(folder / "authority", PAST).issue(name, days=1).pem)


@pytest.mark.parametrize("mutual", [True, False], ids=["mutual TLS", "challenge"])
def test_a_client_whose_certificate_has_expired_is_refused_and_others_go_on(serving, tmp_path, mutual, caplog):
    folder = enrol(tmp_path, 2)
    local = serving(folder, mutual=mutual)
    local.join(1, Answers(1))
    expired(folder, "c2")
    with pytest.raises((LoginRefused, InputError)) as refusal:
        local.stay("c2", Answers(2), now=PAST).result(HANG)
    if mutual:  # TLS 1.3 tells the client when the server has hung up already
        assert any("TLS failed" in record.message for record in caplog.records)
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
        local.stay("c1", Answers(1)).result(HANG)
    assert not local.server.connected()


def test_a_client_that_was_started_again_replaces_its_own_dead_connection(local, monkeypatch):
    monkeypatch.setattr(lines, "PING", 0.2)
    relay = Relay(local.server.port)
    old = local.join(1, Answers(1), port=relay.port)
    dead = local.server._lines.get(1)
    relay.freeze()
    again = Answers(1)
    local.stay("c1", again)
    local.server.wait(lambda there: local.server._lines.get(1) not in (None, dead), HANG)
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert len(again.asked) == 1
    relay.close()
    with pytest.raises(InputError, match="broke"):
        old.result(HANG)


def test_a_connection_that_answers_is_not_replaced(local):
    first = Answers(1)
    local.join(1, first)
    with pytest.raises(LoginRefused, match="connected already"):
        local.stay("c1", Answers(1)).result(HANG)
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert len(first.asked) == 1


def silent_connections(local, count):
    return [socket.create_connection(("127.0.0.1", local.server.port), HANG) for _ in range(count)]


def test_connections_that_say_nothing_make_room_for_clients(local, monkeypatch):
    monkeypatch.setattr(connections, "STRANGERS", 3)
    monkeypatch.setattr(connections, "HURRIED", 0.05)
    silent = silent_connections(local, 12)
    local.join(1, Answers(1))
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert len(local.server._connections._strangers) <= 3
    assert silent[0].recv(1) == b""  # the first was cut off
    for one in silent:
        one.close()


def test_whoever_comes_when_all_places_are_taken_waits_for_one(local, monkeypatch):
    monkeypatch.setattr(connections, "STRANGERS", 2)
    monkeypatch.setattr(connections, "HURRIED", HANG)
    silent, there = silent_connections(local, 2), threading.Event()
    task = local.stay("c1", Answers(1))
    waiting = threading.Thread(target=lambda: (local.server.wait(lambda clients: 1 in clients, HANG), there.set()))
    waiting.start()
    while len(local.server._connections._strangers) < 2:
        there.wait(0.01)
    assert not there.is_set()
    assert not task.done()
    silent[0].close()
    assert there.wait(HANG)
    waiting.join(HANG)
    silent[1].close()


def test_whoever_declines_what_is_delivered_is_lost_and_refuses_nothing(local):
    """As a client that was killed after it had closed the round, and has no round when it is asked again."""

    class Restarted(Answers):
        def handle(self, request):
            if isinstance(request, Store):
                raise UnexpectedRequest("Store came before an invitation")
            return super().handle(request)

    local.join(1, Restarted(1))
    assert local.ask(to_all(Store(0), (1,))) == {}
    assert local.server.exchange.errors == []
