"""The rounds of a deployed run, of two kinds.

In ordinary rounds the clients stay connected (`NetworkRounds`); in assisted rounds the helpers stay connected, and the
clients visit (`OpenRounds`): they fetch the *task*, a signed description of the open round, and upload a contribution.

In both kinds the server waits until enough parties are connected and, if the run uses a beacon, until the round's line
is published (the first line, if rounds need no beacon values of their own).  The server repeats a failed round after
growing pauses.  A restarted server resumes the open round: in an ordinary round it processes the stored replies instead
of requesting them again; in an assisted round it publishes the same task again, and uses the stored contributions.
"""

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from dordis import wire
from dordis.durable_files import write_atomically
from dordis.errors import MalformedMessage
from dordis.identity.keys import load_keys
from dordis.identity.registry import Registry
from dordis.network.authentication import Authenticator
from dordis.network.deadlines import SlowClients
from dordis.network.download_endpoint import SumDocument
from dordis.network.log_lines import round_fields
from dordis.network.messages import RoundTask, SignedTask, sign_task
from dordis.network.resumable_rounds import ResumableExchange, RoundStore
from dordis.network.server import Server
from dordis.network.visits import PublishedRound, VisitEndpoint, largest_contribution
from dordis.protocol import ClientId, Message, OpenCall, Replies, Requests
from dordis.protocols.parameters import Parameters
from dordis.protocols.vector_backend import Vectors
from dordis.records.server_status import ConnectedClients, read_connected, write_connected
from dordis.rounds.arrivals import ArrivalStore
from dordis.rounds.engine import AgreedRound, Gathered, RoundEngine, RoundResult, RoundServer
from dordis.rounds.invitation import Invitation
from dordis.rounds.watch import Watch, silent
from dordis.runs.job import Job, closing_of
from dordis.selection.beacon import Beacon, FileBeacon

log = logging.getLogger("dordis.network")

BEACON_POLL = 0.5
"""Seconds between two reads of the beacon file while its next line is awaited."""
LONGEST_RETRY_PAUSE = 60.0
"""Longest pause in seconds before a failed round is repeated."""
POLL = 30.0
"""Seconds between two visits of a client that waits for a task, if `deployment.poll` is not set."""
TASK = "task.bin"
"""File with the signed task of the open round, which a restarted server publishes again."""
LONGEST_FAREWELL, LOOK = 60.0, 0.05
"""Seconds for which the server waits, at most, until all clients were told that the run is over; seconds between two
checks whether they were."""


def wait_for_beacon(beacon: Beacon, index: int, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until the beacon line of a round is published; raise if its time is not after that of the run's manifest."""
    if not isinstance(beacon, FileBeacon):
        return
    if not beacon.is_published(index):
        log.info("waiting for line %d of the beacon %s", beacon.first + index + 1, beacon.path.name)
    while not beacon.is_published(index):
        sleep(BEACON_POLL)
    beacon.value(index)


class RetryPauses:
    """Pauses before a failed round is repeated: each is twice as long as the one before, up to LONGEST_RETRY_PAUSE."""

    def __init__(self, first: float, sleep: Callable[[float], None] = time.sleep) -> None:
        self._first, self._sleep, self._attempts = first, sleep, 0

    def wait(self) -> None:
        """Wait if an attempt at the current round has failed; the wait is longer after each further failure."""
        if self._attempts:
            seconds = min(self._first * 2 ** (self._attempts - 1), LONGEST_RETRY_PAUSE)
            log.info("the round is tried again in %g s", seconds)
            self._sleep(seconds)

    def start_attempt(self) -> None:
        """Record that an attempt at the current round begins."""
        self._attempts += 1

    def end_round(self) -> None:
        """Record that the round is finished."""
        self._attempts = 0


def wait_for_parties(
    server: Server, kind: str, expected: frozenset[ClientId], least: int, wait: float
) -> frozenset[ClientId]:
    """Wait up to `wait` seconds for all `expected` parties, then without limit for any `least`; return the connected.

    `kind` names the parties in the log, such as "clients".
    """
    connected = server.wait(expected.issubset, wait) if wait else server.connected()
    if len(connected) < least:
        log.warning("%d %s are connected, %d are needed: waiting", len(connected), kind, least)
        connected = server.wait(lambda parties: len(parties) >= least)
    return connected


def start_attempt(invitation: Invitation, store: RoundStore, pauses: RetryPauses) -> None:
    """Store the index of the round, before its first message is sent; log the beginning, and count the attempt."""
    info = invitation.invite.info
    store.record_index(info.index)
    log.info("the round begins", extra=round_fields(info.run, info.index))
    pauses.start_attempt()


class ResumableEngine(RoundEngine):
    """A round engine whose exchange stores every completed stage, and therefore needs the state machine of the round.

    From the state machine the exchange reads the sums that it stores.
    """

    def __init__(self, exchange: ResumableExchange, *arguments: Any, **options: Any) -> None:
        super().__init__(exchange, *arguments, **options)
        self._resumable = exchange

    def server(self, agreed: AgreedRound) -> RoundServer:
        """Make the server's state machine of a round, pass it to the exchange, and return it."""
        self._resumable.begin_round(super().server(agreed), agreed.parameters)
        return self._resumable.machine


class NetworkRounds:
    """Rounds with connected clients; the open round is stored on disk, and a restarted server resumes it."""

    def __init__(
        self,
        job: Job,
        registry: Registry,
        server: Server,
        authenticator: Authenticator,
        store: RoundStore,
        beacon: Beacon,
    ) -> None:
        self._beacon, self._every_round = beacon, job.needs_beacon_values
        self._server, self._authenticator, self._store = server, authenticator, store
        self._members = frozenset(registry)
        self._least, self._wait = job.design.setting.t, job.config.deployment.wait
        self._pauses = RetryPauses(job.config.deployment.deadlines.retry)
        self._slow = SlowClients(job.design.setting.T, read_connected(store.directory).missed)
        self._invited = frozenset[ClientId]()
        self._engine = ResumableEngine(
            ResumableExchange(server.exchange, store),
            job.protocol,
            registry.signing_keys(),
            self.available,
            suite=job.suite,
            meter=server.exchange,
            run=server.perform,
            vectors=Vectors(job.config.performance.cores),
        )

    def available(self, index: int) -> Collection[ClientId]:
        """Wait for the round's beacon line and for enough connected clients; return the clients to invite.

        Clients that recently missed deadlines (`SlowClients`) are left out, unless fewer than the threshold would
        remain.  The first call also waits up to `deployment.wait` seconds for all members.
        """
        self._pauses.wait()
        revoked = self._authenticator.revoked_members()
        self._server.disconnect_revoked(revoked)
        wait_for_beacon(self._beacon, index if self._every_round else 0)
        wait, self._wait = self._wait, 0.0
        connected = wait_for_parties(self._server, "clients", self._members - revoked, self._least, wait)
        self._note_clients()
        quick = self._slow.without_resting(connected)
        self._invited = quick if len(quick) >= self._least else connected
        return self._invited

    def _note_clients(self) -> None:
        """Count the clients' missed deadlines of the latest round; store the counts and the list of connected clients.

        `dordis status` shows both.
        """
        invited, self._invited = self._invited, frozenset()
        self._slow.end_round(invited, dict(self._server.exchange.late))
        status = ConnectedClients(tuple(sorted(self._server.connected())), self._slow.totals)
        write_connected(self._store.directory, status)

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Store the index of the round, invite clients and let them train; return the ready clients."""
        start_attempt(invitation, self._store, self._pauses)
        return self._engine.gather(invitation, watch)

    def still_ready(self, ready: Collection[ClientId]) -> Collection[ClientId]:
        """Return the clients of `ready` that are still connected, and neither excluded nor revoked.

        Clients may have disconnected since they trained, because the server finishes the evaluation of the previous
        round before this call.  Wait up to the grace time (`deployment.deadlines.grace`) until they have reconnected.
        """
        self._server.disconnect_revoked(self._authenticator.revoked_members())
        left = frozenset(ready) - dict(self._server.exchange.exclusions).keys()
        return left & self._server.wait(left.issubset, self._server.exchange.grace)

    def sum(self, agreed: AgreedRound, watch: Watch = silent) -> RoundResult:
        """Sum the updates of a round.

        If the server was restarted during the round, wait up to `deployment.wait` seconds for the round's clients.
        """
        before = self._store.interrupted()
        if before is None or before.parameters != agreed.parameters:
            self._store.begin_round(agreed.as_interrupted())
        elif self._wait:
            wait, self._wait = self._wait, 0.0
            clients = frozenset(agreed.parameters.clients) - self._authenticator.revoked_members()
            self._server.wait(clients.issubset, wait)
        result = self._engine.sum(agreed, watch)
        self._pauses.end_round()
        self._note_clients()
        return result


class OpenRounds:
    """Assisted rounds: helpers stay connected, and clients visit the server by single requests."""

    def __init__(
        self,
        job: Job,
        registry: Registry,
        server: Server,
        authenticator: Authenticator,
        store: RoundStore,
        visits: VisitEndpoint,
        arrivals: ArrivalStore,
        beacon: Beacon,
    ) -> None:
        self._beacon, self._every_round = beacon, job.needs_beacon_values
        self._server, self._authenticator, self._store, self._visits = server, authenticator, store, visits
        self._arrivals, self._closing = arrivals, closing_of(job.config)
        self._members, self._helpers = frozenset(registry), frozenset(job.protocol.helper_ids)
        trusted = job.protocol.assistance
        faulty = 0 if trusted is None else trusted.faulty
        self._least_helpers = (len(self._helpers) + faulty) // 2 + 1
        self._wait = job.config.deployment.wait
        self._pauses = RetryPauses(job.config.deployment.deadlines.retry)
        self._agreed: AgreedRound | None = None
        self._begun = -1
        self._engine = RoundEngine(
            self._exchange,
            job.protocol,
            registry.signing_keys(),
            self.available,
            suite=job.suite,
            meter=server.exchange,
            run=server.perform,
            vectors=Vectors(job.config.performance.cores),
            helpers=job.protocol.helper_ids,
            arrivals=arrivals,
            close_at=self._closing.clients,
        )

    def available(self, index: int) -> Collection[ClientId]:
        """Wait for the round's beacon line and for a quorum of connected helpers; return the clients not revoked.

        The first call also waits up to `deployment.wait` seconds for all helpers.
        """
        self._pauses.wait()
        wait_for_beacon(self._beacon, index if self._every_round else 0)
        revoked = self._authenticator.revoked_helpers()
        self._server.disconnect_revoked(revoked)
        wait, self._wait = self._wait, 0.0
        wait_for_parties(self._server, "helpers", self._helpers - revoked, self._least_helpers, wait)
        return self._members - self._authenticator.revoked_members()

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Store the index of the round; return the helpers' introductions, which have their keys for the round."""
        start_attempt(invitation, self._store, self._pauses)
        self._server.perform(self._begin(invitation.invite.info.index))
        return self._engine.gather(invitation, watch)

    def still_ready(self, ready: Collection[ClientId]) -> Collection[ClientId]:
        """Return `ready` as it is: no list of clients is fixed before the contributions arrive."""
        return ready

    def sum(self, agreed: AgreedRound, watch: Watch = silent) -> RoundResult:
        """Publish the task, collect contributions until the round closes, and unmask their sum with the helpers."""
        is_resumed = self._begun != agreed.parameters.index  # the round was begun before a restart
        if is_resumed:
            self._server.perform(self._begin(agreed.parameters.index))
        self._agreed = agreed
        is_closed = is_resumed and self._arrivals.is_closed
        self._server.perform(self._set_parameters(agreed.parameters, is_closed))
        result = self._engine.sum(agreed, watch)
        self._pauses.end_round()
        return result

    async def _begin(self, index: int) -> None:
        self._server.exchange.begin_round()
        self._begun = index

    async def _set_parameters(self, parameters: Parameters, is_closed: bool) -> None:
        self._server.exchange.set_parameters(parameters)
        self._visits.begin(parameters.index, is_closed=is_closed)

    async def _exchange(self, requests: Requests) -> Replies:
        if isinstance(requests, OpenCall) and self._agreed is not None:
            return await self._visits.take(requests, self._publish(self._agreed, requests.request))
        return await self._server.exchange(requests)

    def _publish(self, agreed: AgreedRound, opening: Message) -> PublishedRound:
        """Return the round as visitors see it: with the stored task if the round is resumed, else with a new task.

        `opening` is the request that clients answer by their contribution; it is part of the task.
        """
        invitation = agreed.invitation
        if invitation is None:
            raise MalformedMessage("a round without a list of clients is published with its invitation")
        known, document = self._stored_task()
        if known is None or (known.invite, known.opening) != (invitation.invite, wire.encode(opening)):
            known = RoundTask(invitation.invite, wire.encode(opening), int(time.time() + self._closing.seconds) + 1)
            document = self._sign(known)
        closes = min(float(known.closes), time.time() + self._closing.seconds)
        published = PublishedRound(
            index=agreed.parameters.index,
            document=document,
            closes=closes,
            model=invitation.model,
            clients=frozenset(invitation.clients),
            largest=largest_contribution(agreed.parameters.dim),
            sums=SumDocument.from_sums(self._engine.recent_sums.all),
        )
        return self._extensible(published, known, agreed.parameters.n_min, self._closing.extensions)

    def _extensible(self, published: PublishedRound, task: RoundTask, least: int, left: int) -> PublishedRound:
        """Return the round with a function `extend`, which is called at the closing time.

        If fewer than `least` clients have contributed, `extend` returns the round with a later closing time, at most
        `left` times.  Otherwise it returns None, and the round closes.
        """

        def extend() -> PublishedRound | None:
            if not left or len(self._arrivals.clients) >= least:
                return None
            closes = published.closes + self._closing.seconds
            log.warning("too few clients have come: the round stays open for %g s more", self._closing.seconds)
            later = RoundTask(task.invite, task.opening, int(closes) + 1)
            return self._extensible(
                replace(published, closes=closes, document=self._sign(later)), later, least, left - 1
            )

        return replace(published, extend=extend)

    def _sign(self, task: RoundTask) -> bytes:
        """Sign a task with the key of the server's certificate; store and return the signed document."""
        credentials = self._authenticator.credentials
        document = sign_task(task, load_keys(credentials.key_file).tls, credentials.certificate)
        write_atomically(self._store.directory / TASK, document)
        return document

    def _stored_task(self) -> tuple[RoundTask | None, bytes]:
        path = self._store.directory / TASK
        if not path.exists():
            return None, b""
        document = path.read_bytes()
        try:
            return wire.decode(wire.decode(document, SignedTask).task, RoundTask), document
        except MalformedMessage:
            return None, b""


def say_farewell(visits: VisitEndpoint, poll: float) -> None:
    """Tell visiting clients that the run is over; return when all that asked this server for a task were told.

    Return after 2 * `poll` seconds at the latest, and after LONGEST_FAREWELL seconds if that is less.  `poll` is the
    average time between two visits of a client.
    """
    visits.end_run()
    end = time.monotonic() + min(LONGEST_FAREWELL, 2 * poll)
    while not visits.seen <= visits.told and time.monotonic() < end:
        time.sleep(LOOK)
