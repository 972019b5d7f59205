"""Connections that are cut at any moment leave one line in the log at most, no traceback, and every place free."""

import base64
import errno
import logging
import os
import socket
import ssl
import struct
from datetime import UTC, datetime

import pytest

from dordis import wire
from dordis.identity.keys import load_client_credentials
from dordis.network import authentication, download_endpoint
from dordis.network.messages import MACHINE_BYTES, SUBPROTOCOL, VERSION_HEADER, BodyInfo, Hello
from dordis.protocols.plaintext import Begin, Contribution
from tests.case_samples import sample_cases
from tests.network.deployed_commands import wait_until
from tests.network.local_server import HANG, PARAMETERS, ScriptedParty
from tests.network.raw_client import log_in
from tests.network.test_visits import INDEX, MODEL, Visits, body_of

pytestmark = pytest.mark.network

TIMES = 10
"""How often each connection is cut: what the server does meanwhile differs."""
BODY = bytes(32 << 20)
"""A body that no socket buffers whole."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a connection that is reset when it is closed."""


class CutConnection:
    """A TLS connection of a test, on which bytes and the end of the connection leave in one segment."""

    def __init__(self, folder, port, client="c1", mutual=False):
        credentials = load_client_credentials(folder / f"{client}.key", datetime.now(UTC))
        context = authentication.client_context(credentials, mutual=mutual)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._socket = socket.create_connection(("127.0.0.1", port), HANG)
        self._exchange(self._tls.do_handshake)

    def _exchange(self, step):
        """Repeat a step of TLS until it needs no more bytes of the server; return its result."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self.flush()
                received = self._socket.recv(1 << 16)
                if not received:
                    raise ConnectionResetError("the server has cut the connection") from None
                self._incoming.write(received)
            else:
                self.flush()
                return result

    def flush(self):
        self._socket.sendall(self._outgoing.read())

    def write(self, data):
        """Encrypt bytes, which leave with the next flush."""
        for start in range(0, len(data), 1 << 14):
            self._tls.write(data[start : start + (1 << 14)])

    def read(self):
        """Return some bytes of the server."""
        return self._exchange(lambda: self._tls.read(1 << 16))

    def end(self):
        """Send everything and the end of TLS in one segment, and close."""
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.unwrap()
        self.flush()
        self._socket.close()

    def wait_for_end(self):
        """Send everything, and wait until the server cuts the connection."""
        self.flush()
        with pytest.raises(ConnectionError):
            self.read()
        self._socket.close()

    def reset(self):
        """Send everything, and reset the connection."""
        self.flush()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._socket.close()

    def answer_and_reset(self):
        """Send everything, read the beginning of the response, and reset the connection."""
        self.flush()
        self.read()
        self.reset()


CUTS = [CutConnection.end, CutConnection.reset, CutConnection.answer_and_reset]


def with_cuts(*names, unanswered):
    """Return the parameters of a test: every request with every cut, but `unanswered`, which has no answer."""
    cases = [(name, cut) for name in names for cut in (CUTS[:2] if name == unanswered else CUTS)]
    ids = [f"{name}-{cut.__name__}" for name, cut in cases]
    return pytest.mark.parametrize(("name", "cut"), sample_cases(cases, one_in=4), ids=ids)


def header(method, path, **headers):
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    return "\r\n".join([*lines, *(f"{name.replace('_', '-')}: {text}" for name, text in headers.items()), "", ""])


def upgrade(path, token=""):
    """Return a valid request for a WebSocket."""
    key = base64.b64encode(bytes(16)).decode()
    given = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Version": "13", "Sec_WebSocket_Key": key}
    given |= {"Authorization": f"Bearer {token}"} if token else {}
    return header("GET", path, Sec_WebSocket_Protocol=SUBPROTOCOL, **given).encode()


def masked(data):
    """Return a binary WebSocket frame with a mask of zeros."""
    return b"\x82" + bytes([0x80 | len(data)]) + bytes(4) + data


def tracebacks(caplog):
    """Return what would be printed as a traceback, and errors that nobody handled."""
    return [one for one in caplog.records if one.levelno >= logging.ERROR or (one.exc_info and one.levelno > 10)]


def is_idle(server):
    """Tell whether a server has given all places back: before log-in, of transfers, uploads and sessions."""
    return not (
        server._connections._pending
        or server._connections._count_open()
        or server.connected()
        or any(server.uploads._slots._transfers.values())
        or server.uploads._uploads
        or server.uploads._pool._receiving
    )


def requests_with_token(local):
    """Return a request to each endpoint of logged-in clients, by name."""
    token = log_in(local)
    offered = local.server.downloads.offer(BODY).digest.hex()
    local.server.uploads.expect(1, 7, BodyInfo(len(BODY), bytes(32)))
    own = {"Authorization": f"Bearer {token}"}
    return {
        "control": upgrade("/control", token),
        "control and a frame": upgrade("/control", token) + masked(b"not a message"),
        "log-in": upgrade("/login"),
        "log-in and an answer": upgrade("/login") + masked(wire.encode(Hello(b"x", bytes(MACHINE_BYTES)))),
        "download": header("GET", f"/blobs/{offered}", **own).encode(),
        "upload": header("PUT", "/vectors/7", **own, Content_Length=len(BODY)).encode() + BODY[: 1 << 20],
        "state of an upload": header("HEAD", "/vectors/7", **own).encode(),
        "receipts": header("GET", "/receipts", **own).encode(),
    }


REQUESTS = ["control", "control and a frame", "log-in", "log-in and an answer", "download", "upload"]
REQUESTS += ["state of an upload", "receipts"]


@with_cuts(*REQUESTS, unanswered="upload")
def test_a_cut_connection_leaves_no_traceback_and_gives_its_place_back(challenging, name, cut, caplog):
    request = requests_with_token(challenging)[name]
    for _ in range(TIMES):
        connection = CutConnection(challenging.folder, challenging.server.port)
        connection.write(request)
        cut(connection)
    wait_until(lambda: is_idle(challenging.server))
    assert tracebacks(caplog) == []
    challenging.join(2, ScriptedParty(2))
    assert challenging.ask({2: Begin(PARAMETERS)}).keys() == {2}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_connection_that_is_cut_when_its_request_is_handled_is_logged_in_one_line(
    challenging, name, caplog, monkeypatch
):
    """The connection is lost between the request and the answer, so that the answer cannot be written."""
    request = requests_with_token(challenging)[name]
    authorised = challenging.server._connections._is_authorised

    def cut(request):
        known = authorised(request)
        request.transport.abort()
        return known

    monkeypatch.setattr(challenging.server._connections, "_is_authorised", cut)
    caplog.set_level(logging.INFO)
    connection = CutConnection(challenging.folder, challenging.server.port)
    connection.write(request)
    connection.reset() if name == "upload" else connection.wait_for_end()
    wait_until(lambda: is_idle(challenging.server))
    assert tracebacks(caplog) == []
    assert sum("was cut" in record.message for record in caplog.records) <= 1
    if name in ("control", "log-in", "download"):
        assert "the connection from 127.0.0.1 was cut" in caplog.text


@with_cuts("task", "manifest", "model", "contribution", "repeated contribution", unanswered="contribution")
def test_a_visit_that_is_cut_leaves_no_traceback_and_gives_its_place_back(folder, name, cut, caplog):
    visits = Visits(folder, most=3)
    taking = visits.open()
    own = {VERSION_HEADER.replace("-", "_"): SUBPROTOCOL}
    body = body_of()
    put = header("PUT", f"/contributions/{INDEX}", **own, Content_Length=len(body)).encode() + body
    request = {
        "task": header("GET", "/task", **own).encode(),
        "manifest": header("GET", "/manifest", **own).encode(),
        "model": header("GET", f"/model/{MODEL.digest.hex()}", **own).encode(),
        "contribution": put[:-1],
        "repeated contribution": put,
    }[name]
    if name == "repeated contribution":
        visits.admit(1, Contribution(ord("a"), b""))
    try:
        for _ in range(TIMES):
            connection = CutConnection(folder, visits.server.port, mutual=True)
            connection.write(request)
            cut(connection)
        wait_until(lambda: is_idle(visits.server) and not any(visits.endpoint._slots._transfers.values()))
        assert not visits.endpoint._receiving
        assert tracebacks(caplog) == []
    finally:
        taking.close()
        visits.server.stop()


def test_a_download_that_stalls_is_cut_with_one_line(challenging, caplog, monkeypatch):
    monkeypatch.setattr(download_endpoint, "DOWNLOAD_STALL", 0.05)
    caplog.set_level(logging.INFO)
    connection = CutConnection(challenging.folder, challenging.server.port)
    connection.write(requests_with_token(challenging)["download"])
    connection.flush()
    wait_until(lambda: is_idle(challenging.server))
    assert tracebacks(caplog) == []
    assert sum("was cut" in record.message for record in caplog.records) == 1
    connection.reset()


@pytest.mark.parametrize("endpoint", ["upload", "receipts"])
def test_a_request_without_room_on_the_disk_is_refused_for_now_in_one_line(challenging, endpoint, caplog, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(challenging.server.uploads, "_announced", fail)
    monkeypatch.setattr(challenging.server._receipts, "history", fail)
    connection = CutConnection(challenging.folder, challenging.server.port)
    connection.write(requests_with_token(challenging)[endpoint])
    connection.flush()
    assert connection.read().startswith(b"HTTP/1.1 503")
    connection.reset()
    assert [record.message.split(": ")[1] for record in caplog.records] == ["No space left on device"]
    assert not any(record.exc_info for record in caplog.records)
