"""Connections before log-in: few, short and small; connected clients are not affected."""

import asyncio
import contextlib
import gc
import socket
import subprocess
import sys
import threading
import time

import aiohttp
import pytest

from dordis import wire
from dordis.network import connections, log_lines, server
from dordis.network.client import new_session
from dordis.network.messages import POLICY_VIOLATION, Hello
from dordis.protocols.plaintext import Begin
from tests.network.deployed_commands import wait_until
from tests.network.local_server import HANG, PARAMETERS, ScriptedParty
from tests.network.raw_client import open_tls, participant, read_to_end

pytestmark = pytest.mark.network


class Acceptor:
    """What `Connections._accept` needs of its object."""

    def __init__(self):
        self._silent, self._sockets = self, set()

    async def _wait_for_descriptor(self):
        pass

    def add(self, accepted):
        accepted.close()


def test_a_connection_that_arrives_while_the_server_stops_is_not_lost():
    """A lost socket is left to the garbage collector, whose warning fails a test."""

    async def stop_in_between(turns):
        with connections.open_listener("127.0.0.1", 0) as listener:
            listener.setblocking(False)
            accepting = asyncio.ensure_future(connections.Connections._accept(Acceptor(), listener))
            await asyncio.sleep(0)
            with socket.create_connection(listener.getsockname(), HANG):
                for _ in range(turns):
                    await asyncio.sleep(0)
                accepting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await accepting

    for turns in range(6):
        asyncio.run(stop_in_between(turns))
        gc.collect()


@pytest.mark.parametrize("sent", [b"", b"GET /login HTTP/1.1\r\nHost: "], ids=["nothing", "half a header"])
def test_a_connection_without_a_whole_request_is_closed(serving, folder, monkeypatch, sent):
    monkeypatch.setattr(connections, "LOGIN_TIMEOUT", 0.2)
    local = serving(folder, mutual=False)
    connection = open_tls(local)
    connection.sendall(sent)
    assert read_to_end(connection) in (b"", b"HTTP/1.1 408 Request Timeout\r\n")


def test_a_log_in_that_takes_too_long_is_refused(serving, folder, monkeypatch):
    monkeypatch.setattr(connections, "LOGIN_TIMEOUT", 0.2)
    local = serving(folder, mutual=False)

    async def hang():
        async with new_session() as session, await participant(local)._open_socket(session, "/login") as socket:
            await socket.receive()
            return (await socket.receive()).data

    assert local.run(hang()) == POLICY_VIOLATION


def test_frames_before_the_log_in_are_small(challenging):
    async def shout():
        async with new_session() as session, await participant(challenging)._open_socket(session, "/login") as socket:
            await socket.receive()
            await socket.send_bytes(wire.encode(Hello(bytes(server.LARGEST_HELLO), bytes(16))))
            return (await socket.receive()).data

    assert challenging.run(shout()) == aiohttp.WSCloseCode.MESSAGE_TOO_BIG


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_listener_at_all_addresses_takes_ipv4_and_ipv6():
    with connections.open_listener("::", 0) as listener:
        for host, shown in (("127.0.0.1", "127.0.0.1"), ("::1", "::1")):
            with socket.create_connection((host, listener.getsockname()[1]), HANG), listener.accept()[0] as accepted:
                assert connections.peer_address(accepted) == shown


def half_open(local, count):
    """Return connections that began TLS and stopped."""
    opened = [socket.create_connection(("127.0.0.1", local.server.port), HANG) for _ in range(count)]
    for one in opened:
        one.sendall(b"\x16")
    return opened


def test_half_open_connections_are_dropped_for_clients_that_wait(local, monkeypatch):
    monkeypatch.setattr(connections, "MOST_PENDING", 3)
    monkeypatch.setattr(connections, "SHORT_PENDING_TIME", 0.05)
    opened = half_open(local, 12)
    local.join(1, ScriptedParty(1))
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert len(local.server._connections._pending) <= 3
    for one in opened:
        one.close()


def test_a_client_waits_while_all_slots_before_log_in_are_taken(local, monkeypatch):
    monkeypatch.setattr(connections, "MOST_PENDING", 2)
    monkeypatch.setattr(connections, "SHORT_PENDING_TIME", HANG)
    opened, there = half_open(local, 2), threading.Event()
    while len(local.server._connections._pending) < 2:
        there.wait(0.01)
    task = local.stay("c1", ScriptedParty(1))
    waiting = threading.Thread(target=lambda: (local.server.wait(lambda clients: 1 in clients, HANG), there.set()))
    waiting.start()
    while not local.server._connections._silent._ready:
        there.wait(0.01)
    assert not there.is_set()
    assert not task.done()
    opened[0].close()
    assert there.wait(HANG)
    waiting.join(HANG)
    opened[1].close()


def test_silent_connections_take_no_slot_and_the_oldest_is_dropped(local, monkeypatch):
    monkeypatch.setattr(connections, "MOST_PENDING", 1)
    monkeypatch.setattr(connections, "SHORT_PENDING_TIME", HANG)
    monkeypatch.setattr(connections, "MOST_SILENT", 3)
    silent = [socket.create_connection(("127.0.0.1", local.server.port), HANG) for _ in range(5)]
    assert [one.recv(1) for one in silent[:2]] == [b"", b""]
    local.join(1, ScriptedParty(1))
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    for one in silent:
        one.close()


def test_connections_that_close_without_a_request_give_their_places_back_at_once(challenging, monkeypatch):
    """No connection is dropped for another one here: only the places that are given back remain."""
    monkeypatch.setattr(connections, "MOST_PENDING", 2)
    for name in ("SHORT_PENDING_TIME", "LONG_PENDING_TIME", "LOGIN_TIMEOUT"):
        monkeypatch.setattr(connections, name, HANG)
    for _ in range(3):
        for one in [open_tls(challenging) for _ in range(2)]:
            one.close()
    challenging.join(1, ScriptedParty(1))
    assert challenging.ask({1: Begin(PARAMETERS)}).keys() == {1}


def test_a_new_connection_is_served_before_those_that_wait(local, monkeypatch):
    """Otherwise connections held open keep clients out for as long as all of them together may stay."""
    monkeypatch.setattr(connections, "MOST_PENDING", 1)
    monkeypatch.setattr(connections, "SHORT_PENDING_TIME", 1.0)
    opened, pending = half_open(local, 12), local.server._connections._silent
    local.join(1, ScriptedParty(1))
    assert len(pending._ready) + len(pending._silent) > 3
    for one in opened:
        one.close()


def test_no_more_connections_than_the_limit_of_open_files_leaves_room_for(serving, folder, monkeypatch, caplog):
    monkeypatch.setattr(connections, "raise_descriptor_limit", lambda: 3)
    monkeypatch.setattr(connections, "ACCEPT_PAUSE", 0.01)
    local = serving(folder)
    local.join(1, ScriptedParty(1))
    for _ in range(500):  # the connection of the log-in closes with a delay
        if local.server._connections._count_open() == 1:
            break
        time.sleep(0.01)
    silent = half_open(local, 4)
    while "no more fit the limit of open files" not in caplog.text:
        time.sleep(0.01)
    assert local.server._connections._count_open() == 3
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    for one in silent:
        one.close()
    local.join(2, ScriptedParty(2))


def test_the_limit_of_open_files_is_raised_and_some_are_kept_free():
    """In a process of its own: the limits of this one stay."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1000));"
        "from dordis.network.connections import raise_descriptor_limit;"
        "print(raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.split() == [str(1000 - connections.MOST_RESERVED), "1000"]


def test_failed_handshakes_are_logged_with_address_and_reason_and_a_flood_of_them_is_counted(caplog):
    handshakes, most = log_lines.HandshakeLog(), log_lines.MOST_FAILURES_LOGGED
    for k in range(most + 5):
        handshakes.fail(f"10.0.0.{k}", ConnectionResetError(104, "Connection reset by peer"), now=k / 100)
    handshakes.fail("10.0.0.99", TimeoutError(), now=log_lines.LOG_PAUSE)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "refused a connection from 10.0.0.0: TLS failed: Connection reset by peer"
    assert lines[most:] == [
        "5 more TLS handshakes failed",
        "refused a connection from 10.0.0.99: TLS failed: TimeoutError",
    ]


def test_a_stranger_without_tls_is_logged_with_its_address(local, caplog):
    with socket.create_connection(("127.0.0.1", local.server.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.recv(100)
    wait_until(lambda: "refused a connection from 127.0.0.1: TLS failed: " in caplog.text)
