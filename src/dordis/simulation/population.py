"""The clients of a simulated run: their long-term keys, owners and dropouts, and the runners of their rounds.

Selection and dropout are drawn from the seed of the simulation; long-term keys are derived from a secret of the run.
"""

import hashlib
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from dordis.config.schema import Simulation
from dordis.crypto import kdf
from dordis.dropout_models import Dropout, DropoutSchedule, in_given_order
from dordis.durable_files import write_new
from dordis.errors import InputError
from dordis.identity.keys import Keys
from dordis.identity.registry import Registry
from dordis.ledger.round_charge import OwnerCharge
from dordis.owner.participation import Attendance, MemoryParticipation
from dordis.owner.policy import Policy
from dordis.pipeline.executor import Exchange, serialise_exchange
from dordis.privacy.encoding import Entropy
from dordis.protocol import ClientId, Message, Party, Requests
from dordis.protocols.costs import FREE, RoundCost
from dordis.protocols.summing import VerifyClient, accept_any_client
from dordis.protocols.vector_backend import Vectors
from dordis.rounds.app import AppClient
from dordis.rounds.arrivals import ArrivalStore
from dordis.rounds.client import Client
from dordis.rounds.engine import AgreedRound, Gathered, InterruptedRound, RoundEngine, RoundResult, RoundRunner
from dordis.rounds.invitation import Invitation, Train
from dordis.rounds.model import LastModel, ModelBytes
from dordis.rounds.watch import Watch, silent
from dordis.runs.job import Job, closing_of
from dordis.runs.parties import build_client, policy_for
from dordis.selection.beacon import SeedBeacon
from dordis.selection.selection import OpenArrival, Selection, UniformSelection, arrival_order
from dordis.selection.vrf_selection import VrfSelection
from dordis.simulation.exchange import LocalExchange
from dordis.simulation.ideal import IdealRounds, tell_peers

SECRET = "simulation.key"  # noqa: S105  the name of a file
"""File in a run's directory with the 32 secret bytes from which the keys of all simulated clients are derived."""

ARRIVALS = "arrivals.bin"
"""File in a run's directory with the contributions to the unfinished round, for protocols without a list of clients."""

AppClients = Callable[[ClientId], AppClient]
"""Function that returns the application of the client with a given id."""

RAY = "dordis.integrations.ray"
"""Module for clients in a Ray cluster; imported only if `simulation.engine` is "ray"."""


@dataclass(frozen=True)
class Identities:
    """The long-term keys of all simulated clients and helpers, derived from one secret when they are needed."""

    secret: bytes = field(repr=False)
    ids: tuple[ClientId, ...]
    helpers: tuple[ClientId, ...] = ()
    """The ids of the simulated helpers; a helper and a client may have the same id."""

    @classmethod
    def read(cls, path: Path, ids: tuple[ClientId, ...], helpers: tuple[ClientId, ...] = ()) -> "Identities":
        """Return the identities for the secret in the run's directory `path`; raise InputError if it is missing."""
        try:
            return cls((path / SECRET).read_bytes(), ids, helpers)
        except OSError:
            raise InputError(
                f"the run at {path} cannot be resumed: its {SECRET} is missing; restore it from a backup or start anew"
            ) from None

    @cached_property
    def keys(self) -> Mapping[ClientId, Keys]:
        """Return the private keys of the clients."""
        return {u: _keys(self.secret, u) for u in self.ids}

    @cached_property
    def registry(self) -> Registry:
        """Return the public keys of clients and helpers."""
        clients, helpers = ({u: own.identity() for u, own in role.items()} for role in (self.keys, self.helper_keys))
        return Registry(clients, helpers)

    @cached_property
    def helper_keys(self) -> Mapping[ClientId, Keys]:
        """Return the private keys of the helpers."""
        return {u: _keys(self.secret, u, b"/helper") for u in self.helpers}


class SimulatedClients:
    """The clients of a run by id; each client is created when it is first used."""

    def __init__(
        self, home: "SimulatedHome", selection: Selection, participation: Mapping[ClientId, MemoryParticipation]
    ) -> None:
        self._home, self.selection, self._participation = home, selection, participation
        self._signing = home.registry.signing_keys() if home.has_keys else {}
        self._models: WeakValueDictionary[bytes, ModelBytes] = WeakValueDictionary()
        self._clients: dict[ClientId, Client] = {}

    def __contains__(self, u: object) -> bool:
        return u in self._participation

    def __getitem__(self, u: ClientId) -> Client:
        if u not in self._clients:
            self._clients[u] = self._make_client(u)
        return self._clients[u]

    def willing(self, cap: int | None) -> list[ClientId]:
        """Return the clients whose owners counted fewer participations than `cap`; all clients if `cap` is None."""
        return [u for u, own in self._participation.items() if cap is None or own.count() < cap]

    def _make_client(self, u: ClientId) -> Client:
        home, counted = self._home, self._participation[u]
        signing, vrf = home.private_keys(u, self.selection)
        return build_client(
            u,
            home.clients(u),
            home.job.protocol,
            home.policy,
            self.selection,
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
    """The population of a simulated run: the clients and their owners, in this process or in processes of Ray."""

    job: Job
    settings: Simulation
    clients: AppClients
    identities: Identities
    entropy: Entropy = secrets.token_bytes
    """Random source of clients' secrets and rounding; clients in Ray processes use the operating system's instead."""
    dropout: Dropout | None = None
    """Dropout model that replaces the configured one, if given."""
    arrivals: ArrivalStore = field(default_factory=ArrivalStore)
    """Store of the contributions to the unfinished round, for protocols without a list of clients."""
    entropy_of: Callable[[ClientId], Entropy] | None = None
    """Function that gives each client its own random source instead of `entropy`.

    Results then do not depend on which process computes a client, nor on the order of the clients.
    """

    @property
    def fidelity(self) -> str:
        """Return `full` or `ideal`."""
        return self.settings.fidelity

    @property
    def where(self) -> str:
        """Return a description of where clients compute, such as `in one process`."""
        if self.settings.engine != "ray":
            return self.settings.where
        ray = import_module(RAY)
        return str(ray.describe_nodes(ray.choose_nodes(self)))

    @property
    def registry(self) -> Registry:
        """Return the public keys of all clients and helpers."""
        return self.identities.registry

    @property
    def has_keys(self) -> bool:
        """Tell whether clients need keys for signatures; in ideal rounds, which have no messages, they need none."""
        return self.fidelity != "ideal"

    @cached_property
    def root(self) -> bytes:
        """Return the root of the registry; empty in ideal rounds."""
        return self.registry.root() if self.has_keys else b""

    def private_keys(self, u: ClientId, selection: Selection) -> tuple[bytes, bytes]:
        """Return the signing key and the VRF key of a client; empty if they are not needed."""
        draws = isinstance(selection, VrfSelection)
        keys = self.identities.keys[u] if self.has_keys or draws else None
        return (b"", b"") if keys is None else (keys.signing, keys.vrf)

    @cached_property
    def beacon(self) -> SeedBeacon:
        """Return the simulated beacon, whose public randomness is drawn from the seed of the simulation."""
        return SeedBeacon(self._seed("beacon"))

    @property
    def selection_seed(self) -> bytes:
        """Return the seed of `uniform` selection."""
        return self._seed("selection")

    def last_index(self) -> int:
        """Return -1, for none: unlike a server, a simulation does not store to which round index it invited clients."""
        return -1

    def explain_failure(self) -> str:
        """Return an empty text, because the error of a simulated round already states the whole reason."""
        return ""

    def interrupted(self) -> InterruptedRound[Any] | None:
        """Return the stored round that still waits for contributions; None if no such round is stored."""
        kind = InterruptedRound[self.job.protocol.parameters]  # type: ignore[name-defined]
        return self.arrivals.round(kind)

    def store(self, path: Path) -> None:
        """Write the secret of all keys into the directory `path`; keep contributions to assisted rounds there, too."""
        write_new(path / SECRET, self.identities.secret)
        self.arrivals.open(path / ARRIVALS)

    def create_helpers(self, verify_client: VerifyClient = accept_any_client) -> Mapping[ClientId, Party]:
        """Return the helpers by id; empty if the protocol has none.

        If the protocol requires it, the helpers verify with `verify_client` that a contributing client was selected.
        """
        protocol, keys = self.job.protocol, self.identities.helper_keys
        if protocol.helper is None:
            return {}
        make = protocol.helper
        if protocol.verifies_selection:
            make = partial(protocol.helper, verify_client=verify_client)
        registry = self.registry.signing_keys()
        return {u: make(u, secret=own.signing, registry=registry, suite=self.job.suite) for u, own in keys.items()}

    def open(
        self,
        run: bytes,
        selection: Selection,
        counted: Mapping[Attendance, OwnerCharge],
        tap: Callable[[Exchange], Exchange] = lambda exchange: exchange,
    ) -> RoundRunner:
        """Return a runner of the run's rounds.

        `counted` has the participations in earlier rounds, because simulated owners do not store them.  `tap` may wrap
        the exchange, for instance to record messages.
        """
        is_open = isinstance(selection, OpenArrival)
        order = in_given_order if is_open else partial(arrival_order, self.selection_seed)
        departures = DropoutSchedule(self._dropout, self.job.protocol, order)
        present = departures.present if isinstance(selection, UniformSelection) else everyone
        if self.settings.engine == "ray":
            rounds: RoundRunner = import_module(RAY).RayRounds(self, selection, counted, departures, present, tap)
            return rounds
        clients = self.create_clients(run, selection, counted)

        def available(index: int) -> Collection[ClientId]:
            return present(index, clients.willing(self.cap))

        if self.fidelity == "ideal":
            given = self.entropy is not secrets.token_bytes  # clients use a given source in a fixed order
            cores = 1 if given else self.job.config.performance.cores
            return IdealRounds(
                clients,
                self.job.protocol,
                departures,
                available,
                self.entropy,
                cores,
                rounds=given,
                helpers=self.create_helpers(selection.verify_client),
                close_at=closing_of(self.job.config).clients,
            )
        return LocalRounds(self, clients, departures, available, tap)

    def create_clients(
        self, run: bytes, selection: Selection, counted: Mapping[Attendance, OwnerCharge] | None = None
    ) -> SimulatedClients:
        """Return the clients of a run; their owners have counted the rounds `counted`, each with cost and clients."""
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
        """Return the participation cap; None if owners bound epsilon instead of rounds, or if no epsilon is proved."""
        return self.job.design.cap if self.job.design.proves and not self.job.design.counts else None

    @cached_property
    def policy(self) -> Policy:
        """Return the policy of all owners, who consent to exactly this configuration."""
        return policy_for(self.job.design, self.job.protocol)

    @property
    def consents(self) -> tuple[str, ...]:
        """Return descriptions of everything that the owners allow beyond the default policy."""
        return self.policy.consents

    def _seed(self, purpose: str) -> bytes:
        """Return 32 pseudorandom bytes for one purpose, derived from the seed of the simulation."""
        return hashlib.sha256(b"dordis/v1/simulation/%b/%d" % (purpose.encode(), self.settings.seed)).digest()


Present = Callable[[int, Collection[ClientId]], Collection[ClientId]]
"""Function of a round's index and of clients, which returns the clients that can be invited to this round."""


def everyone(index: int, clients: Collection[ClientId]) -> Collection[ClientId]:
    """Return all `clients`: for all selection methods but the uniform one, which selects among the clients present."""
    return clients


class FullRounds:
    """Runs rounds with every message of the protocol; clients leave at the stages that the dropout model draws."""

    def __init__(self, engine: RoundEngine, departures: DropoutSchedule) -> None:
        self._engine, self._departures = engine, departures
        self.available = engine.available
        self._invited: tuple[ClientId, ...] = ()

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Draw the dropouts of the round, and return the clients that accept and train."""
        self._departures.begin(invitation.invite.info.index, invitation.clients)
        return self._engine.gather(invitation, watch)

    def still_ready(self, ready: Collection[ClientId]) -> Collection[ClientId]:
        """Return all ready clients: the dropout model decides later which of them are lost."""
        return ready

    def sum(self, agreed: AgreedRound, watch: Watch = silent) -> RoundResult:
        """Run the summing protocol with the ready clients or, if assisted, with all clients that contribute."""
        if agreed.invitation is not None:
            self._invited = agreed.invitation.clients
            self._departures.begin(agreed.parameters.index, self._invited)
        return self._engine.sum(agreed, watch)


class LocalRounds(FullRounds):
    """Runs rounds with clients in this process."""

    def __init__(
        self,
        home: SimulatedHome,
        clients: SimulatedClients,
        departures: DropoutSchedule,
        available: Callable[[int], Collection[ClientId]],
        tap: Callable[[Exchange], Exchange],
    ) -> None:
        helpers = home.create_helpers(clients.selection.verify_client)
        exchange = LocalExchange(
            clients, departures.lost, helpers=helpers, coming=lambda: departures.coming(self._invited)
        )
        registry, job = home.registry.signing_keys(), home.job
        engine = RoundEngine(
            serialise_exchange(tap(announce_peers(exchange, clients, departures.is_early))),
            job.protocol,
            registry,
            available,
            suite=job.suite,
            meter=exchange,
            vectors=Vectors(job.config.performance.cores),
            helpers=tuple(helpers),
            arrivals=home.arrivals,
            close_at=closing_of(job.config).clients,
        )
        super().__init__(engine, departures)


def announce_peers(
    exchange: Exchange, clients: SimulatedClients, is_absent: Callable[[ClientId], bool] = lambda u: False
) -> Exchange:
    """Return an exchange that announces who trains together (`tell_peers`) before it asks clients to train.

    Clients for which `is_absent` returns True are asked to train too, but not announced.
    """

    def deliver(requests: Requests) -> Iterable[tuple[ClientId, Message]]:
        asked = [u for u, request in requests.items() if isinstance(request, Train)]
        tell_peers(clients[u] for u in asked if not is_absent(u))
        return exchange(requests)

    return deliver


def _keys(secret: bytes, u: ClientId, role: bytes = b"") -> Keys:
    parts = iter((b"signing", b"vrf"))
    return Keys.generate(lambda n: kdf.expand(secret, b"dordis/v1/simulated%b/%d/%b" % (role, u, next(parts)), n))
