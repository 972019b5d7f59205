"""Where the clients of a deployed run are: behind connections of their own."""

import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dordis import wire
from dordis.errors import InputError
from dordis.federation.beacon import Beacon, FileBeacon, SeedBeacon
from dordis.federation.charges import OwnersCount
from dordis.federation.durable import create
from dordis.federation.job import Job
from dordis.federation.manifest import DEPLOYED
from dordis.federation.manifest_checks import beacon_of, read_manifest
from dordis.federation.owner import policy_of
from dordis.federation.participation import Attendance
from dordis.federation.records import MANIFEST, REGISTRY
from dordis.federation.registry import Registry
from dordis.federation.selection import Selection
from dordis.network.deadlines import Patience
from dordis.network.recorded import RecordedExchange
from dordis.network.server import Door, Server
from dordis.network.state import ServerState
from dordis.protocol import ClientId
from dordis.protocols.vectors import LocalVectors
from dordis.rounds.invitation import Invitation
from dordis.rounds.server import (
    AgreedRound,
    Gathered,
    InterruptedRound,
    RoundEngine,
    RoundResult,
    Rounds,
    RoundServer,
    Watch,
    silent,
)

log = logging.getLogger("dordis.network")

SECRET = "selection.key"  # noqa: S105  the name of a file
"""File of 32 bytes from which clients are drawn, where the server draws."""
"""The members that a run began with."""
LOOK = 0.5
"""Seconds between two looks at a beacon file whose next line is awaited."""
MOST_CHUNKS = 64
SHARE_BYTES = 256
"""Bytes that a client sends at most for one secret of one peer, with what proves it."""


@dataclass
class NetworkHome:
    """The clients of a deployed run: whoever the door lets in."""

    job: Job
    registry: Registry
    door: Door
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    listening: Callable[[int], None] = lambda port: None
    """Told the port, once clients can come."""
    server: Server | None = None
    state: ServerState | None = None
    manifest: bytes = b""
    """The manifest's file, whose hash is the run id; empty before the run is stored."""

    fidelity = DEPLOYED
    where = "on machines of their own"

    @classmethod
    def resume(cls, job: Job, registry: Registry, door: Door, path: Path) -> "NetworkHome":
        """Resume a run with its stored secret and manifest."""
        try:
            secret, manifest = (path / SECRET).read_bytes(), (path / MANIFEST).read_bytes()
        except OSError:
            raise InputError(
                f"the run at {path} cannot be resumed: {SECRET} or {MANIFEST} cannot be read; restore them"
            ) from None
        return cls(job, registry, door, secret, state=ServerState(path), manifest=manifest)

    @property
    def root(self) -> bytes:
        """Return the root of the registry."""
        return self.registry.root()

    @cached_property
    def beacon(self) -> Beacon:
        """Return the public randomness: the published file, where a run needs one."""
        if not self.job.has_beacon:
            return SeedBeacon(bytes(32))
        if not self.job.config.deployment.beacon:
            raise InputError("secagg+ and selection 'vrf' need public randomness: set deployment.beacon to its file")
        published = FileBeacon(Path(self.job.config.deployment.beacon))
        if not self.manifest:
            return replace(published, first=published.next_line())
        return beacon_of(read_manifest(self.manifest, len(self.registry)), published)

    @property
    def selection_seed(self) -> bytes:
        """Return what clients are drawn from, where the server draws."""
        return self.secret

    def store(self, path: Path) -> None:
        """Write what clients are drawn from, and the registry."""
        create(path / SECRET, self.secret)
        self.registry.save(path / REGISTRY)
        self.state = ServerState(path)
        self.manifest = (path / MANIFEST).read_bytes()
        vars(self).pop("beacon", None)  # from now on the beacon begins at the manifest's line

    def interrupted(self) -> InterruptedRound | None:
        """Return the round that was under way when the server stopped."""
        return None if self.state is None else self.state.interrupted()

    @property
    def consents(self) -> tuple[str, ...]:
        """Say what owners allow who agree to the run as it is configured, beyond what they would by default."""
        return policy_of(self.job.design, self.job.protocol.name).consents

    def open(self, run: bytes, selection: Selection, counted: Mapping[Attendance, OwnersCount]) -> Rounds:
        """Listen for clients."""
        settings = self.job.config.deployment
        self.server = Server(
            self.door,
            run,
            Patience(settings.deadlines, settings.train_seconds),
            manifest=self.manifest,
            limit=frame_limit(self.job),
            receivers=self.job.config.performance.receivers,
        )
        self.server.start(settings.host, settings.port)
        self.listening(self.server.port)
        if self.state is None:
            raise InputError("a run is stored before it is opened")
        return NetworkRounds(self.job, self.registry, self.server, self.door, self.state, self.beacon)

    def close(self, *, over: bool = False) -> None:
        """Tell the clients that the server stops, and whether the run is over: then they leave its last round."""
        if self.server is not None:
            self.server.stop(over=over)
            self.server = None
        if self.state is not None:
            if over:
                self.state.empty()
            self.state.end()
            self.state = None


class RecordedEngine(RoundEngine):
    """An engine that lets its exchange see the machine of the round."""

    def __init__(self, recorded: RecordedExchange, *arguments: Any, **options: Any) -> None:
        super().__init__(recorded, *arguments, **options)
        self._recorded = recorded

    def server(self, agreed: AgreedRound) -> RoundServer:
        """Return the server's machine of a round."""
        self._recorded.begin(super().server(agreed), agreed.parameters)
        return self._recorded.machine


class NetworkRounds:
    """Rounds with clients that are connected; what a round came to so far is kept."""

    def __init__(
        self, job: Job, registry: Registry, server: Server, door: Door, state: ServerState, beacon: Beacon
    ) -> None:
        self._beacon, self._every_round = beacon, job.needs_beacon_values
        self._server, self._door, self._state, self._everyone = server, door, state, frozenset(registry)
        self._least, self._wait = job.design.setting.t, job.config.deployment.wait
        self._engine = RecordedEngine(
            RecordedExchange(server.exchange, state),
            job.protocol,
            registry.signing_keys(),
            self.available,
            suite=job.suite,
            meter=server.exchange,
            run=server.perform,
            vectors=LocalVectors(job.config.performance.cores),
        )

    def available(self, index: int) -> Collection[ClientId]:
        """Return who is connected: the first round waits for everybody, for a while, and every one for enough."""
        self._server.dismiss(self._door.revoked())
        self._await_beacon(index if self._every_round else 0)
        wait, self._wait = self._wait, 0.0
        there = self._server.wait(self._everyone.issubset, wait) if wait else self._server.connected()
        if len(there) < self._least:
            log.warning("%d clients are connected, %d are needed: waiting", len(there), self._least)
            there = self._server.wait(lambda clients: len(clients) >= self._least)
        return there

    def _await_beacon(self, index: int) -> None:
        """Wait until the beacon value of a round is published; raise if it is older than the manifest."""
        if isinstance(self._beacon, FileBeacon):
            if not self._beacon.is_published(index):
                log.info("waiting for line %d of the beacon %s", self._beacon.first + index + 1, self._beacon.path.name)
            while not self._beacon.is_published(index):
                time.sleep(LOOK)
            self._beacon.value(index)

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Invite clients, and have them train."""
        return self._engine.gather(invitation, watch)

    def sum(self, agreed: AgreedRound, watch: Watch = silent) -> RoundResult:
        """Sum their updates; a round that was under way before a restart goes on when its clients are back."""
        before = self._state.interrupted()
        if before is None or before.parameters != agreed.parameters:
            self._state.begin(agreed.as_interrupted())
        elif self._wait:
            wait, self._wait = self._wait, 0.0
            self._server.wait(frozenset(agreed.parameters.clients).issubset, wait)
        return self._engine.sum(agreed, watch)


def frame_limit(job: Job) -> int:
    """Return the bytes of the longest frame that a client of the run has to send: its shares for all peers."""
    config, plan = job.config, job.design.example()
    chunks = MOST_CHUNKS if config.performance.chunks == "auto" else config.performance.chunks
    shared = 2 + max(len(noise.removable) for noise in plan.plans)
    return min(wire.LIMIT, (1 << 16) + config.federation.clients * (chunks + 1) * shared * SHARE_BYTES)
