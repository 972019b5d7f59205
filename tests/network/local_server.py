"""A server and clients in one process over loopback TLS, and the federation, parties and vectors that tests use."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dordis.config.schema import Deadlines
from dordis.errors import ParametersRefused
from dordis.identity.authority import REGISTRY_FILE, Authority
from dordis.identity.keys import load_client_credentials, load_server_credentials
from dordis.identity.registry import SignedRegistry
from dordis.network.authentication import Authenticator, LoginCredentials, utc_now
from dordis.network.client import LONGEST_SILENCE, Participant
from dordis.network.client_transfers import Address
from dordis.network.deadlines import AdaptiveDeadlines
from dordis.network.server import Server
from dordis.protocol import Requests
from dordis.protocols.delivery import Dispatch, Received
from dordis.protocols.plaintext import PLAINTEXT, Begin, Contribute, Contribution, Joined
from tests.rounds.parties import agreed, invite_to
from tests.runs.parties import joined

HANG = 600.0
"""Seconds after which a missing event fails a test."""
RUN = bytes(range(32))
PARAMETERS = agreed(chunks=2)
SIZE = 4 * PARAMETERS.chunks[0].stop
"""Bytes of a vector."""
VECTORS = {u: np.arange(SIZE // 4, dtype="<u4").tobytes()[: SIZE - 4] + bytes([u, 0, 0, 0]) for u in range(1, 12)}
ABSENT = 9
"""A client that never connects."""


def enrol(folder: Path, clients: int) -> Path:
    """Create a federation in a folder: `server.key`, `c1.key`, ..., their certificates and the signed registry."""
    authority = Authority.create(folder / "authority", "tests", datetime.now(UTC))
    joined(authority, folder / "server.key", hosts=("localhost", "127.0.0.1"))
    for u in range(1, clients + 1):
        joined(authority, folder / f"c{u}.key")
    publish(folder)
    return folder


def publish(folder: Path) -> None:
    """Copy the newest registry of the authority to the file that server and clients read."""
    (folder / "registry.json").write_bytes((folder / "authority" / REGISTRY_FILE).read_bytes())


class ScriptedParty:
    """A party that replies at once, but waits at requests it holds and refuses those it fails; it records requests."""

    def __init__(self, u, holds=(), fails=()):
        self.u, self.asked = u, []
        self._holds, self._fails = holds, fails
        self.reached, self.go = threading.Event(), threading.Event()

    def handle(self, request):
        self.asked.append(request)
        if isinstance(request, tuple(self._holds)):
            self.reached.set()
            self.go.wait(HANG)
        if isinstance(request, tuple(self._fails)):
            raise ParametersRefused("my owner says no")
        match request:
            case Begin():
                return Joined()
            case Contribute():
                return Contribution(request.chunk, VECTORS[self.u])
            case Dispatch():
                return Received(request.chunk)
        raise AssertionError(request)


def to_clients(request, clients=(1, 2, 3)):
    return dict.fromkeys(clients, request)


async def drain_connections() -> None:
    """Wait until all connections of the running loop are closed, which TLS does with a delay."""
    watched = asyncio.get_running_loop()._selector.get_map()
    for _ in range(6000):
        if len(watched) <= 1:
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)


class LocalServer:
    """A server with the files of a federation; clients are tasks of one event loop in a thread."""

    def __init__(
        self,
        folder: Path,
        *,
        mutual: bool = True,
        now: datetime | None = None,
        clock: Callable[[], datetime] = utc_now,
        run: bytes = RUN,
        manifest: bytes = b"",
        **deadlines: Any,
    ) -> None:
        self.folder, self.mutual = folder, mutual
        credentials = load_server_credentials(folder / "server.key", now or datetime.now(UTC))
        members = SignedRegistry.load(folder / "registry.json", credentials.authority).registry
        self.authenticator = Authenticator(credentials, members, folder / "registry.json", mutual, now=clock)
        adaptive = AdaptiveDeadlines(Deadlines(**{"stage": HANG, "train": HANG, "grace": HANG} | deadlines))
        self.server = Server(self.authenticator, run, adaptive, manifest=manifest, largest_frame=1 << 20)
        self.server.start("127.0.0.1", 0)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: list[Future[Any]] = []

    def run(self, work: Any) -> Any:
        """Run a coroutine on the event loop of the clients."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(HANG)

    def stay(
        self,
        name: str,
        party: Any,
        *,
        mutual: bool | None = None,
        port: int = 0,
        once: bool = True,
        now: datetime | None = None,
        silence: float = LONGEST_SILENCE,
    ) -> Future[Any]:
        """Let a client take part, by the name of its key file; return the future of its end."""
        credentials = load_client_credentials(self.folder / f"{name}.key", now or datetime.now(UTC))
        own = LoginCredentials(credentials, self.mutual if mutual is None else mutual)
        address = Address("localhost", port or self.server.port)

        async def joined() -> None:
            await Participant(address, own, lambda welcome: party, PLAINTEXT, silence).stay(once)

        self._tasks.append(asyncio.run_coroutine_threadsafe(joined(), self.loop))
        return self._tasks[-1]

    def join(self, u: int, party: Any, **options: Any) -> Future[Any]:
        """Let a client take part, and wait until it is connected."""
        task = self.stay(f"c{u}", party, **options)
        self.server.wait(lambda there: u in there, HANG)
        return task

    def join_all(self, *clients: int) -> dict[int, ScriptedParty]:
        """Let clients take part with scripted parties; return the parties."""
        parties = {u: ScriptedParty(u) for u in clients}
        for u, party in parties.items():
            self.join(u, party)
        return parties

    def send(self, requests: Requests) -> Any:
        """Send requests together; return the iterator over the replies."""
        return self.server.perform(self.server.exchange(requests))

    def ask(self, requests: Requests) -> dict[int, Any]:
        """Send requests together; return the replies."""
        return dict(self.send(requests))

    def ask_vector(self, u: int) -> bytes:
        """Return the vector of a client for chunk 0."""
        ((_, reply),) = self.send({u: Contribute(0)})
        return bytes(reply.vector)

    def begin_round(self) -> None:
        """Begin a new round, in which no client is excluded."""
        self.send({ABSENT: invite_to(PARAMETERS)}).close()

    async def _drained(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)
        await drain_connections()

    def close(self) -> None:
        """Stop the server and all clients."""
        self.server.stop()
        for task in self._tasks:
            task.cancel()
        self.run(self._drained())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(HANG)
        self.loop.close()
