"""The clients of a simulated run, in this process: their keys, owners and departures, and what runs their rounds.

What is public or random in the model world, like who is selected or drops, follows from the seed of the simulation;
keys come from a secret of the run.
"""

import hashlib
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

from dordis.crypto import kdf
from dordis.drive import Exchange
from dordis.errors import InputError
from dordis.federation.beacon import SeedBeacon
from dordis.federation.charges import OwnersCount
from dordis.federation.durable import create
from dordis.federation.job import Job
from dordis.federation.owner import policy_of
from dordis.federation.participation import Attendance, MemoryParticipation
from dordis.federation.parties import build_client
from dordis.federation.policy import Policy
from dordis.federation.registry import Keys, Registry
from dordis.federation.selection import Selection, Uniform, Verifiable
from dordis.pipeline.executor import in_turn
from dordis.privacy.encoding import Entropy
from dordis.protocol import ClientId, Message, Requests
from dordis.protocols.costs import FREE, RoundCost
from dordis.protocols.vectors import LocalVectors
from dordis.rounds.app import AppClient
from dordis.rounds.client import Client
from dordis.rounds.invitation import Invitation, Train
from dordis.rounds.model import LastModel, ModelBytes
from dordis.rounds.server import Gathered, RoundEngine, Rounds, Watch, silent
from dordis.simulation.availability import Dropout
from dordis.simulation.config import Simulation
from dordis.simulation.departures import Departures
from dordis.simulation.exchange import LocalExchange
from dordis.simulation.ideal import IdealRounds, tell_peers

SECRET = "simulation.key"  # noqa: S105  the name of a file
"""File of 32 bytes from which the long-term keys of all simulated clients are derived."""

AppClients = Callable[[ClientId], AppClient]
"""Gives a client of the application by its id."""


@dataclass(frozen=True)
class Identities:
    """The long-term keys of all simulated clients, derived from one secret when they are needed."""

    secret: bytes = field(repr=False)
    ids: tuple[ClientId, ...]

    @classmethod
    def read(cls, path: Path, ids: tuple[ClientId, ...]) -> "Identities":
        """Read the secret that a run began with."""
        try:
            return cls((path / SECRET).read_bytes(), ids)
        except OSError:
            raise InputError(f"the run at {path} cannot go on: its {SECRET} is missing") from None

    @cached_property
    def keys(self) -> Mapping[ClientId, Keys]:
        """Return the private keys."""
        return {u: _keys(self.secret, u) for u in self.ids}

    @cached_property
    def registry(self) -> Registry:
        """Return the public keys."""
        return Registry({u: own.identity() for u, own in self.keys.items()})


class SimulatedClients:
    """All clients of a run by id, each made when it is first asked for."""

    def __init__(
        self, home: "SimulatedHome", selection: Selection, participation: Mapping[ClientId, MemoryParticipation]
    ) -> None:
        self._home, self._selection, self._participation = home, selection, participation
        self._signing = home.registry.signing_keys() if home.has_keys else {}
        self._models: WeakValueDictionary[bytes, ModelBytes] = WeakValueDictionary()
        self._clients: dict[ClientId, Client] = {}

    def __contains__(self, u: object) -> bool:
        return u in self._participation

    def __getitem__(self, u: ClientId) -> Client:
        if u not in self._clients:
            self._clients[u] = self._made(u)
        return self._clients[u]

    def willing(self, cap: int | None) -> list[ClientId]:
        """Return those whose owners let them take part once more."""
        return [u for u, own in self._participation.items() if cap is None or own.count() < cap]

    def _made(self, u: ClientId) -> Client:
        home, counted = self._home, self._participation[u]
        signing, vrf = home.private_keys(u, self._selection)
        return build_client(
            u,
            home.clients(u),
            home.job.protocol,
            home.policy,
            self._selection,
            counted,
            root=home.root,
            vrf_key=vrf,
            beacon=home.beacon,
            mechanism=home.job.design.kind,
            signing=signing,
            registry=self._signing,
            suite=home.job.suite,
            models=LastModel(self._models),
            entropy=home.entropy if home.entropy_of is None else home.entropy_of(u),
        )


@dataclass(frozen=True)
class SimulatedHome:
    """Where the clients of a simulated run are: here."""

    job: Job
    settings: Simulation
    clients: AppClients
    identities: Identities
    entropy: Entropy = secrets.token_bytes
    """What clients draw their secrets and their rounding from; those in other processes draw from the system's."""
    dropout: Dropout | None = None
    """In place of the model of the settings, if given."""
    entropy_of: Callable[[ClientId], Entropy] | None = None
    """What one client draws from, in place of `entropy`: the same wherever, and after whomever, it computes."""

    @property
    def fidelity(self) -> str:
        """Return `full` or `ideal`."""
        return self.settings.fidelity

    @property
    def where(self) -> str:
        """Say where clients compute."""
        if self.settings.engine != "ray":
            return self.settings.where
        from dordis.simulation.ray import places, where

        return where(places(self))

    @property
    def registry(self) -> Registry:
        """Return the public keys of all clients."""
        return self.identities.registry

    @property
    def has_keys(self) -> bool:
        """Tell whether clients sign: where no message is sent there is nothing to sign."""
        return self.fidelity != "ideal"

    @cached_property
    def root(self) -> bytes:
        """Return the root of the registry."""
        return self.registry.root() if self.has_keys else b""

    def private_keys(self, u: ClientId, selection: Selection) -> tuple[bytes, bytes]:
        """Return the signing key of a client, and the key that it draws lots with, where they are needed."""
        draws = isinstance(selection, Verifiable)
        keys = self.identities.keys[u] if self.has_keys or draws else None
        return (b"", b"") if keys is None else (keys.signing, keys.vrf)

    @cached_property
    def beacon(self) -> SeedBeacon:
        """Return the public randomness."""
        return SeedBeacon(self._seed("beacon"))

    @property
    def selection_seed(self) -> bytes:
        """Return what clients are drawn from, where the server draws."""
        return self._seed("selection")

    def interrupted(self) -> None:
        """Return nothing: simulated clients are gone with the process."""

    def store(self, path: Path) -> None:
        """Write the secret that all keys are derived from."""
        create(path / SECRET, self.identities.secret)

    def open(
        self,
        run: bytes,
        selection: Selection,
        counted: Mapping[Attendance, OwnersCount],
        tap: Callable[[Exchange], Exchange] = lambda exchange: exchange,
    ) -> Rounds:
        """Make the clients; owners remember rounds of before a restart: simulated ones keep no file of their own.

        `tap` may put something before the exchange of messages.
        """
        departures = Departures(self._dropout, self.job.protocol)
        present = departures.present if isinstance(selection, Uniform) else everyone
        if self.settings.engine == "ray":
            from dordis.simulation.ray import RayRounds

            return RayRounds(self, selection, counted, departures, present, tap)
        clients = self.made(run, selection, counted)

        def available(index: int) -> Collection[ClientId]:
            return present(index, clients.willing(self.cap))

        if self.fidelity == "ideal":
            given = self.entropy is not secrets.token_bytes  # then clients draw from it in their order
            cores = 1 if given else self.job.config.performance.cores
            return IdealRounds(clients, self.job.protocol, departures, available, self.entropy, cores, rounds=given)
        return LocalRounds(self, clients, departures, available, tap)

    def made(
        self, run: bytes, selection: Selection, counted: Mapping[Attendance, OwnersCount] | None = None
    ) -> SimulatedClients:
        """Return the clients of a run, whose owners have counted rounds before, for any exchange."""
        participation = {u: MemoryParticipation() for u in self.identities.ids}
        for (began, index), count in (counted or {}).items():
            failure = float(self.job.design.agreement.round_failure)
            cost = FREE if count.cost is None else RoundCost(count.cost, count.distance, failure)
            for u in participation.keys() & set(map(ClientId, count.clients)):
                participation[u].reserve(began, index, cost=cost)
        return SimulatedClients(self, selection, participation)

    @property
    def _dropout(self) -> Dropout:
        if self.dropout is not None:
            return self.dropout
        return self.settings.dropout.model(self.settings.seed, self.job.protocol.stages)

    @property
    def cap(self) -> int | None:
        """Return how often an owner lets a client take part, where it cannot bound by itself what that costs."""
        return self.job.design.cap if self.job.design.proves and not self.job.design.counts else None

    @cached_property
    def policy(self) -> Policy:
        """Return what all owners agree to: the run as it is configured, and nothing less."""
        return policy_of(self.job.design, self.job.protocol.name)

    @property
    def consents(self) -> tuple[str, ...]:
        """Say what all owners allow beyond what they would by default."""
        return self.policy.consents

    def _seed(self, purpose: str) -> bytes:
        """Return 32 bytes for one purpose, from the seed of the simulation."""
        return hashlib.sha256(b"dordis/v1/simulation/%b/%d" % (purpose.encode(), self.settings.seed)).digest()


Present = Callable[[int, Collection[ClientId]], Collection[ClientId]]
"""Returns those of some clients who can be invited to the round with an index."""


def everyone(index: int, clients: Collection[ClientId]) -> Collection[ClientId]:
    """Return all: where the server may not choose among those who are there, the others are invited, too."""
    return clients


class FullRounds:
    """Rounds with every message of the protocol; clients leave when the dropout model says so."""

    def __init__(self, engine: RoundEngine, departures: Departures) -> None:
        self._engine, self._departures = engine, departures
        self.available, self.sum = engine.available, engine.sum

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Decide who leaves, and gather the others."""
        self._departures.begin(invitation.invite.info.index, invitation.clients)
        return self._engine.gather(invitation, watch)


class LocalRounds(FullRounds):
    """Rounds with clients in this process."""

    def __init__(
        self,
        home: SimulatedHome,
        clients: SimulatedClients,
        departures: Departures,
        available: Callable[[int], Collection[ClientId]],
        tap: Callable[[Exchange], Exchange],
    ) -> None:
        exchange = LocalExchange(clients, departures.lost)
        registry, job = home.registry.signing_keys(), home.job
        engine = RoundEngine(
            in_turn(tap(expected(exchange, clients, departures.is_early))),
            job.protocol,
            registry,
            available,
            suite=job.suite,
            meter=exchange,
            vectors=LocalVectors(job.config.performance.cores),
        )
        super().__init__(engine, departures)


def expected(
    exchange: Exchange, clients: SimulatedClients, is_absent: Callable[[ClientId], bool] = lambda u: False
) -> Exchange:
    """Tell clients that are asked to train who else is, before they do."""

    def deliver(requests: Requests) -> Iterable[tuple[ClientId, Message]]:
        asked = [u for u, request in requests.items() if isinstance(request, Train)]
        tell_peers(clients[u] for u in asked if not is_absent(u))
        return exchange(requests)

    return deliver


def _keys(secret: bytes, u: ClientId) -> Keys:
    parts = iter((b"signing", b"vrf"))
    return Keys.generate(lambda n: kdf.expand(secret, b"dordis/v1/simulated/%d/%b" % (u, next(parts)), n))
