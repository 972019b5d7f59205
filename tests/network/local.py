"""A real server and real clients of the network, in one process: for tests of single requests."""

import asyncio
import threading
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dordis.federation.config import Deadlines
from dordis.federation.identity import load_identity, load_server_identity
from dordis.federation.membership import SignedRegistry
from dordis.network.client import LONGEST_SILENCE, Participant
from dordis.network.deadlines import Patience
from dordis.network.doors import FederationDoor, FederationPass
from dordis.network.server import Server
from dordis.network.transfers import Address
from dordis.protocol import Requests
from dordis.protocols.plaintext import PLAINTEXT

HANG = 600.0
"""Seconds after which something that never comes is a failure."""
RUN = bytes(range(32))


async def drain_connections() -> None:
    """Wait until the loop watches itself alone: what was closed or aborted it closes later, TLS in 30 s at most."""
    watched = asyncio.get_running_loop()._selector.get_map()
    for _ in range(6000):
        if len(watched) <= 1:
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)


class LocalServer:
    """A server with its files in a folder; clients are tasks of one loop in a thread."""

    def __init__(
        self,
        folder: Path,
        *,
        mutual: bool = True,
        receivers: int = 0,
        now: datetime | None = None,
        run: bytes = RUN,
        manifest: bytes = b"",
        **deadlines: Any,
    ) -> None:
        self.folder, self.mutual = folder, mutual
        credentials = load_server_identity(folder / "server.key", now or datetime.now(UTC))
        members = SignedRegistry.load(folder / "registry.json", credentials.authority).registry
        self.door = FederationDoor(credentials, members, folder / "registry.json", mutual)
        patience = Patience(Deadlines(**deadlines))
        self.server = Server(self.door, run, patience, manifest=manifest, limit=1 << 20, receivers=receivers)
        self.server.start("127.0.0.1", 0)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: list[Future[Any]] = []

    def run(self, work: Any) -> Any:
        """Run a coroutine on the loop of the clients."""
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
        """Let a client join, by the name of its key file."""
        credentials = load_identity(self.folder / f"{name}.key", now or datetime.now(UTC))
        own = FederationPass(credentials, self.mutual if mutual is None else mutual)
        address = Address("localhost", port or self.server.port)

        async def joined() -> None:
            await Participant(address, own, lambda welcome: party, PLAINTEXT, silence).stay(once)

        self._tasks.append(asyncio.run_coroutine_threadsafe(joined(), self.loop))
        return self._tasks[-1]

    def join(self, u: int, party: Any, **options: Any) -> Future[Any]:
        """Let a client join, and wait until it is connected."""
        task = self.stay(f"c{u}", party, **options)
        self.server.wait(lambda there: u in there, HANG)
        return task

    def ask(self, requests: Requests) -> dict[int, Any]:
        """Send requests together; return the replies."""
        return dict(self.server.perform(self.server.exchange(requests)))

    async def _drained(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)
        await drain_connections()

    def close(self) -> None:
        """End everything."""
        self.server.stop()
        for task in self._tasks:
            task.cancel()
        self.run(self._drained())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(HANG)
        self.loop.close()
