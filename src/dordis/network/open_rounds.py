"""Assisted rounds over the network: helpers stay connected, clients come by single requests.

Contributions are stored as they arrive.  A restarted server publishes the same task, continues with the stored
contributions, and sends them to the helpers again.
"""

import logging
import time
from collections.abc import Collection
from dataclasses import replace

from dordis import wire
from dordis.durable_files import write_atomically
from dordis.errors import MalformedMessage
from dordis.identity.keys import load_keys
from dordis.identity.registry import Registry
from dordis.network.authentication import Authenticator
from dordis.network.beacon_wait import wait_for_beacon
from dordis.network.log_lines import round_fields
from dordis.network.messages import RoundTask, SignedTask, sign_task
from dordis.network.resumable_rounds import RoundStore
from dordis.network.retry_pauses import RetryPauses
from dordis.network.server import Server
from dordis.network.server_transfers import SumDocument
from dordis.network.visits import PublishedRound, VisitEndpoint, largest_contribution
from dordis.protocol import ClientId, Message, OpenCall, Replies, Requests
from dordis.protocols.parameters import Parameters
from dordis.protocols.vector_backend import LocalVectors
from dordis.rounds.arrivals import ArrivalStore
from dordis.rounds.engine import AgreedRound, Gathered, RoundEngine, RoundResult
from dordis.rounds.invitation import Invitation
from dordis.rounds.watch import Watch, silent
from dordis.runs.job import Job, closing_of
from dordis.selection.beacon import Beacon

log = logging.getLogger("dordis.network")

POLL = 30.0
"""Seconds between two visits of a client that waits for a task, if `deployment.poll` is not set."""
TASK = "task.bin"
"""File with the signed task of the open round, which a restarted server publishes again."""
LONGEST_FAREWELL, LOOK = 60.0, 0.05
"""Longest time in seconds for clients to learn that the run is over, and the pause between two checks of this."""


class OpenRounds:
    """Rounds with connected helpers and visiting clients."""

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
            vectors=LocalVectors(job.config.performance.cores),
            helpers=job.protocol.helper_ids,
            arrivals=arrivals,
            close_at=self._closing.clients,
        )

    def available(self, index: int) -> Collection[ClientId]:
        """Return the members that are not revoked, once the beacon is published and a quorum of helpers is connected.

        The first call also waits for all helpers, for `deployment.wait` seconds at most.
        """
        self._pauses.wait()
        wait_for_beacon(self._beacon, index if self._every_round else 0)
        revoked = self._authenticator.revoked_helpers()
        self._server.disconnect_revoked(revoked)
        wait, self._wait = self._wait, 0.0
        connected = self._server.wait((self._helpers - revoked).issubset, wait) if wait else self._server.connected()
        if len(connected) < self._least_helpers:
            log.warning("%d helpers are connected, %d are needed: waiting", len(connected), self._least_helpers)
            self._server.wait(lambda helpers: len(helpers) >= self._least_helpers)
        return self._members - self._authenticator.revoked_members()

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Store the index of the round, and return the introductions of the helpers, with their keys for it."""
        info = invitation.invite.info
        self._store.record_index(info.index)
        log.info("the round begins", extra=round_fields(info.run, info.index))
        self._pauses.start_attempt()
        self._server.perform(self._begin(info.index))
        return self._engine.gather(invitation, watch)

    def sum(self, agreed: AgreedRound, watch: Watch = silent) -> RoundResult:
        """Publish the task, collect contributions until the round closes, and let the helpers open the sum."""
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
        """Return the round as clients see it: with the stored task if the round is resumed, otherwise a new one."""
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
        """Return the round with up to `left` extensions, each made only if fewer than `least` clients contributed."""

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
    """Tell visiting clients that the run is over, until all that visited before know it.

    This takes at most two polling intervals, and at most LONGEST_FAREWELL seconds.
    """
    visits.end_run()
    end = time.monotonic() + min(LONGEST_FAREWELL, 2 * poll)
    while not visits.seen <= visits.told and time.monotonic() < end:
        time.sleep(LOOK)
