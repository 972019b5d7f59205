"""Clients that tests drive byte by byte and frame by frame, to violate the network protocol."""

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import aiohttp

from dordis import wire
from dordis.identity.keys import load_client_credentials
from dordis.network import authentication
from dordis.network.authentication import LoginCredentials
from dordis.network.client import Participant, new_session
from dordis.network.client_transfers import Address
from dordis.network.messages import MACHINE_BYTES, SUBPROTOCOL, Challenge, FromServer, Hello, Request
from dordis.protocols.plaintext import PLAINTEXT
from tests.network.local_server import HANG, drain_connections

THREADS = ThreadPoolExecutor(4)
ATTACKER = 11
"""The member that misuses its identity."""


class SilentParty:
    """A party that must not be asked anything."""

    def handle(self, request):
        raise AssertionError(request)


def open_tls(local):
    """Return a TLS connection without a client certificate."""
    context = authentication.client_context(
        load_client_credentials(local.folder / "c1.key", datetime.now(UTC)), mutual=False
    )
    plain = socket.create_connection(("localhost", local.server.port), HANG)
    return context.wrap_socket(plain, server_hostname="localhost")


def read_to_end(connection):
    """Return all bytes until the server closes the connection."""
    data = b""
    try:
        while piece := connection.recv(1 << 16):
            data += piece
    except (ConnectionError, ssl.SSLError):
        pass
    connection.close()
    return data


def send_request(local, method, path, token="", **headers):
    """Send the header of one HTTP request over its own connection; return the connection."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"Authorization: Bearer {token}"] if token else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    connection = open_tls(local)
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection


def read_status(connection):
    """Return the HTTP status of the response."""
    return int(read_to_end(connection).split(b" ", 2)[1])


def participant(local, name="c1", port=0):
    """Return a participant that logs in by challenge."""
    login = LoginCredentials(load_client_credentials(local.folder / f"{name}.key", datetime.now(UTC)), mutual=False)
    address = Address("localhost", port or local.server.port)
    return Participant(address, login, lambda welcome: SilentParty(), PLAINTEXT)


def log_in(local, name="c1"):
    """Log a client in by challenge; return its access token, in hexadecimal."""

    async def log_in():
        client = participant(local, name)
        async with new_session() as session, await client._open_socket(session, "/login") as socket:
            return await client._log_in(socket)

    return local.run(log_in()).token.hex()


class RawClient:
    """A member with a valid identity that sends frames as a test says, on its own event loop."""

    def __init__(self, local, client=ATTACKER, autoping=True):
        self.local, self.autoping = local, autoping
        self.login = LoginCredentials(load_client_credentials(local.folder / f"c{client}.key", datetime.now(UTC)))
        self.welcome = None

    @property
    def base(self):
        return f"https://localhost:{self.local.server.port}"

    async def act(self, deed):
        """Log in, and call a coroutine function with this client, its HTTP session and its control connection."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANG)) as session:
            options = {"protocols": (SUBPROTOCOL,), "ssl": self.login.context}
            async with session.ws_connect(f"{self.base}/login", **options) as socket:
                challenge = wire.decode((await socket.receive()).data, FromServer)
                assert isinstance(challenge, Challenge)
                await socket.send_bytes(wire.encode(Hello(b"", bytes(MACHINE_BYTES))))
                self.welcome = wire.decode((await socket.receive()).data, FromServer)
            options["autoping"] = self.autoping
            async with session.ws_connect(f"{self.base}/control", headers=self.headers(), **options) as socket:
                return await deed(self, session, socket)

    async def next_request(self, socket):
        request = wire.decode((await socket.receive()).data, FromServer)
        assert isinstance(request, Request)
        return request

    def headers(self, **more):
        return {"Authorization": f"Bearer {self.welcome.token.hex()}", **more}

    def start(self, deed):
        """Act in a thread; return the future of the result."""
        return THREADS.submit(asyncio.run, self._act_and_drain(deed))

    async def _act_and_drain(self, deed):
        try:
            return await self.act(deed)
        finally:
            await drain_connections()


async def wait_closed(socket):
    """Return the code with which the server closes a WebSocket."""
    while (message := await socket.receive()).type not in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED):
        assert message.type is not aiohttp.WSMsgType.ERROR
    return socket.close_code
