"""Sessions: a token for each log-in, one connection for each client, and no second machine."""

import ssl
from types import SimpleNamespace

import pytest

from dordis.errors import InputError, LoginRefused
from dordis.network import sessions
from dordis.network.messages import SUBPROTOCOL
from dordis.network.sessions import FragmentCounter
from dordis.protocols.plaintext import Begin
from tests.network.local_server import HANG, PARAMETERS, ScriptedParty, to_clients
from tests.network.proxies import FaultyProxy
from tests.network.raw_client import RawClient, log_in, read_status, send_request

pytestmark = pytest.mark.network


@pytest.mark.parametrize("token", ["", "00" * 32, "zz", "é"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/control"), ("GET", "/blobs/00"), ("PUT", "/vectors/1")])
def test_without_a_valid_token_every_request_is_refused(challenging, method, path, token):
    upgrade = {"Sec_WebSocket_Protocol": SUBPROTOCOL}
    assert read_status(send_request(challenging, method, path, token.encode().decode("latin-1"), **upgrade)) == 401


def test_a_new_log_in_invalidates_the_earlier_token(challenging):
    before, after = log_in(challenging), log_in(challenging)
    assert read_status(send_request(challenging, "GET", "/blobs/00", before)) == 401
    assert read_status(send_request(challenging, "GET", "/blobs/00", after)) == 404


@pytest.mark.slow
def test_a_restarted_client_replaces_its_dead_connection(local, monkeypatch):
    monkeypatch.setattr(sessions, "PING_TIMEOUT", 0.2)
    proxy = FaultyProxy(local.server.port)
    old = local.join(1, ScriptedParty(1), port=proxy.port)
    dead = local.server._sessions.get(1)
    proxy.freeze()
    again = ScriptedParty(1)
    local.stay("c1", again)
    local.server.wait(lambda clients: local.server._sessions.get(1) not in (None, dead), HANG)
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert len(again.asked) == 1
    proxy.close()
    with pytest.raises(InputError, match="broke"):
        old.result(HANG)


def test_a_connection_that_answers_a_ping_is_not_replaced(local):
    first = ScriptedParty(1)
    local.join(1, first)
    with pytest.raises(LoginRefused, match="connected already"):
        local.stay("c1", ScriptedParty(1)).result(HANG)
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert len(first.asked) == 1


def test_a_second_client_with_an_identity_in_use_is_refused_and_the_first_goes_on(local, caplog):
    local.join_all(1, 2, 3)
    with pytest.raises(LoginRefused, match="connected already"):
        local.stay("c1", ScriptedParty(1)).result(HANG)
    assert any("connected already" in record.message for record in caplog.records)
    assert local.ask(to_clients(Begin(PARAMETERS))).keys() == {1, 2, 3}


def test_with_mutual_tls_a_stolen_token_is_of_no_use_with_another_certificate(local, monkeypatch):
    async def steal(raw, session, socket):
        thief = RawClient(local, client=2).login
        async with session.get(f"{raw.base}/blobs/00", headers=raw.headers(), ssl=thief.context) as response:
            return response.status

    assert RawClient(local, client=1).start(steal).result(HANG) == 401
    monkeypatch.setattr(sessions, "is_bound_to", lambda holder, request: True)
    assert RawClient(local, client=3).start(steal).result(HANG) == 404


def test_a_connection_that_was_cut_before_its_request_was_handled_shows_no_certificate():
    """Python's TLS then says that the handshake is not done."""
    cut = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    transport = SimpleNamespace(get_extra_info={"ssl_object": cut}.get)
    assert sessions.client_certificate(SimpleNamespace(transport=transport)) is None
    holder = sessions.TokenHolder(1, b"", b"certificate")
    assert not sessions.is_bound_to(holder, SimpleNamespace(transport=transport))


@pytest.mark.parametrize("piece", [1, 3, 7, 10**6])
def test_short_fragments_are_counted_however_the_bytes_arrive(piece):
    counter, stream = FragmentCounter(), b""
    for size, fin, masked in [(0, 0, 1), (5, 0, 0), (70000, 0, 1), (300, 0, 1), (2000, 0, 1), (0, 1, 1), (300, 1, 0)]:
        length = (
            bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2) if size < 65536 else b"\x7f" + size.to_bytes(8)
        )
        stream += bytes([fin << 7 | 2, length[0] | masked << 7]) + length[1:] + bytes(4 * masked + size)
    for start in range(0, len(stream), piece):
        counter.feed(stream[start : start + piece])
    assert counter.count == 3
