"""A server that sends garbage: its clients drop the connection, say so, and come back later each time."""

import asyncio
import socket
import threading
from contextlib import suppress

import pytest
from aiohttp import WSMsgType

from dordis import wire
from dordis.errors import InputError
from dordis.network import client, transfers
from dordis.network.messages import Challenge, Welcome
from dordis.protocols.delivery import Dispatch, Received
from dordis.protocols.plaintext.messages import Begin, Contribute
from tests.network.federation import enrol
from tests.network.local import HANG, LocalServer
from tests.network.test_server import PARAMETERS, Answers

pytestmark = pytest.mark.network


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return enrol(tmp_path_factory.mktemp("federation"), 1)


@pytest.fixture
def local(folder):
    server = LocalServer(folder, stage=HANG, train=HANG, grace=HANG)
    yield server
    server.close()


@pytest.fixture
def pauses(monkeypatch):
    """Return the pauses of a client, which are over at once; where it has had enough of them, it waits for ever."""
    waited = []

    async def wait(seconds):
        waited.append(seconds)
        if len(waited) >= 12:
            await asyncio.Event().wait()

    monkeypatch.setattr(client, "wait_to_connect", wait)
    return waited


@pytest.fixture
def warnings(caplog):
    caplog.set_level("WARNING", "dordis.network")
    return lambda: [record.getMessage() for record in caplog.records if "try again" in record.getMessage()]


def spoil(local, monkeypatch, send, times):
    """Have the server send garbage on the control channel, the first so many times, and wait until clients leave."""
    serve, spoilt = local.server._serve, []

    async def spoiling(line):
        if len(spoilt) >= times:
            await serve(line)
            return
        spoilt.append(line)
        await send(line.socket)
        with suppress(ConnectionError):
            while (await line.socket.receive()).type not in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.ERROR):
                pass
        local.server._lines.remove(line)

    monkeypatch.setattr(local.server, "_serve", spoiling)
    return spoilt


@pytest.mark.parametrize("send", GARBAGE, ids=lambda send: send.__name__)
def test_a_client_that_is_sent_garbage_comes_back_and_says_so_in_a_line(local, monkeypatch, pauses, warnings, send):
    spoil(local, monkeypatch, send, 3)
    task = local.stay("c1", Answers(1), once=False)
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert not task.done()
    assert pauses == [transfers.FIRST_PAUSE * 2**i for i in range(3)]
    assert len(warnings()) == 3
    assert all("\n" not in line and f"left localhost:{local.server.port}" in line for line in warnings())


def test_a_server_that_sends_nothing_but_garbage_does_not_make_a_client_spin(local, monkeypatch, pauses, warnings):
    spoilt = spoil(local, monkeypatch, send_bytes, 10**6)
    task = local.stay("c1", Answers(1), once=False)
    while len(pauses) < 12:
        assert not task.done()
        local.run(asyncio.sleep(0.01))
    assert pauses == [min(transfers.FIRST_PAUSE * 2**i, transfers.LONGEST_PAUSE) for i in range(12)]
    assert pauses[-1] == transfers.LONGEST_PAUSE
    assert len(spoilt) == len(warnings()) == 12


def test_garbage_in_place_of_a_log_in_is_dropped_too(local, monkeypatch, pauses, warnings):
    admitted, spoilt = local.server._admitted, []

    async def garbage(request, socket):
        if len(spoilt) >= 2:
            return await admitted(request, socket)
        spoilt.append(request)
        await (send_bytes if len(spoilt) == 1 else send_out_of_turn)(socket)
        return await admitted(request, socket)

    monkeypatch.setattr(local.server, "_admitted", garbage)
    local.stay("c1", Answers(1), once=False)
    assert local.ask({1: Begin(PARAMETERS)}).keys() == {1}
    assert pauses == [transfers.FIRST_PAUSE, 2 * transfers.FIRST_PAUSE]
    assert len(warnings()) == 2


def test_a_client_that_joins_once_ends_with_a_sentence(local, monkeypatch):
    spoil(local, monkeypatch, send_bytes, 1)
    with pytest.raises(InputError, match="broke"):
        local.stay("c1", Answers(1)).result(HANG)


def test_a_vector_that_nobody_takes_does_not_end_a_client(folder, monkeypatch):
    """The server names a port at which there is nobody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nowhere = listener.getsockname()[1]
    local, failed, pause = LocalServer(folder, stage=HANG, grace=0.0), threading.Event(), transfers._pause
    admit = local.server.uploads.admit

    async def pausing(trial, error):
        failed.set()
        await pause(trial, error)

    monkeypatch.setattr(local.server.uploads, "admit", lambda *who: (admit(*who)[0], nowhere))
    monkeypatch.setattr(transfers, "TRIES", 1)
    monkeypatch.setattr(transfers, "_pause", pausing)
    local.join(1, Answers(1))
    local.ask({1: Begin(PARAMETERS)})
    local.server.perform(local.server.exchange({1: Contribute(0)}))
    assert failed.wait(HANG)
    assert local.ask({1: Dispatch(0, 7, b"sum")}) == {1: Received(0)}
    local.close()
