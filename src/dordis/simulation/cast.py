"""The cast of a simulated run: the clients' keys, how they are selected, what their owners agree to, when they leave.

What is public or random in the model world, like who is selected or drops, follows from the seed of the simulation;
keys come from a secret of the run.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from dordis.crypto import kdf
from dordis.crypto.suite import DEFAULT, Suite
from dordis.federation.beacon import SeedBeacon
from dordis.federation.design import Design
from dordis.federation.participation import MemoryParticipation
from dordis.federation.policy import Policy
from dordis.federation.registry import Keys, Registry
from dordis.federation.round import Fleet
from dordis.federation.selection import Balanced, Selection, Uniform, Verifiable
from dordis.named import named
from dordis.protocol import ClientId
from dordis.protocols.machines import SECAGG, Machines
from dordis.simulation.config import Config
from dordis.simulation.fleet import Clients, LocalFleet, Owned, Population
from dordis.simulation.ideal import IdealFleet

COMPLETE, SPARSE = "secagg", "secagg+"


@dataclass(frozen=True)
class Identities:
    """The long-term keys of all simulated clients, and the registry of the public ones."""

    keys: Mapping[ClientId, Keys] = field(repr=False)
    registry: Registry

    @classmethod
    def of(cls, secret: bytes, ids: tuple[ClientId, ...]) -> "Identities":
        """Derive all keys from one secret of 32 bytes."""
        keys = {u: _keys(secret, u) for u in ids}
        return cls(keys, Registry({u: own.identity() for u, own in keys.items()}))


@dataclass(frozen=True)
class Cast:
    """Everyone who plays a part in a run, by its configuration; `run` is the run id."""

    config: Config
    design: Design
    ids: tuple[ClientId, ...]
    run: bytes
    identities: Identities
    attended: dict[ClientId, MemoryParticipation] = field(default_factory=dict)

    @cached_property
    def beacon(self) -> SeedBeacon:
        """Return the public randomness."""
        return beacon_of(self.config)

    @cached_property
    def selection(self) -> Selection:
        """Return how clients are selected."""
        count, least = self.config.federation.per_round, self.design.setting.t
        match self.config.federation.selection:
            case "uniform":
                return Uniform(count, seed_of(self.config, "selection"), least)
            case "vrf":
                return Verifiable(self.identities.registry, self.run, Fraction(count), least, self.beacon)
        return Balanced(self.identities.registry, self.run, count, least)

    def population(self, client: Clients) -> Population:
        """Return the clients of the application, and when they leave."""
        simulation = self.config.simulation
        dropout = simulation.dropout.model(simulation.seed)
        return Population(self.ids, client, dropout, choosy=isinstance(self.selection, Uniform))

    def fleet(self, population: Population) -> Fleet:
        """Return the clients with all that they need to sum."""
        keys, registry = self.identities.keys, self.identities.registry
        for u in self.ids:
            self.attended.setdefault(u, MemoryParticipation())
        owned = Owned(keys, registry, self.selection, self.policy_for, self.attended, self.cap, self.beacon)
        if self.config.simulation.fidelity == "ideal":
            return IdealFleet(population, owned=owned)
        return LocalFleet(population, owned, machines_of(self.config), suite_of(self.config))

    @property
    def cap(self) -> int | None:
        """Return how often an owner lets a client take part; where nothing is proved, there is nothing to keep to."""
        return self.design.cap if self.design.proves else None

    @cached_property
    def policy(self) -> Policy:
        """Return what all owners agree to: the run as it is configured, and nothing less."""
        return self.policy_for(self.design.setting.clients)

    def policy_for(self, clients: int) -> Policy:
        """Return the same for rounds of so many clients."""
        parameters = self.design.sized(clients).example()
        return Policy(
            colluders=self.design.setting.colluders,
            modes=frozenset({parameters.mode}),
            schemes=frozenset({parameters.scheme}),
            mechanisms=frozenset({parameters.encoding.mechanism}),
            participations=self.cap,
        )

    def recall(self, attended: Mapping[int, tuple[int, ...]]) -> None:
        """Have owners remember rounds of before a restart, by index: simulated ones keep no file of their own."""
        for index, clients in attended.items():
            for u in clients:
                self.attended.setdefault(ClientId(u), MemoryParticipation()).reserve(self.run, index)


def machines_of(config: Config) -> Machines:
    """Return the protocol that a configuration names; SecAgg+ is SecAgg on a sparse graph."""
    if config.protocol.use in (COMPLETE, SPARSE):
        return SECAGG
    return named(config.protocol.use, "protocol.use", Machines)


def suite_of(config: Config) -> Suite:
    """Return the cryptographic primitives that a configuration names."""
    return DEFAULT if config.protocol.suite == "default" else named(config.protocol.suite, "protocol.suite", Suite)


def beacon_of(config: Config) -> SeedBeacon:
    """Return the public randomness of a simulation."""
    return SeedBeacon(seed_of(config, "beacon"))


def seed_of(config: Config, purpose: str) -> bytes:
    """Return 32 bytes for one purpose, from the seed of the simulation."""
    return hashlib.sha256(b"dordis/v1/simulation/%b/%d" % (purpose.encode(), config.simulation.seed)).digest()


def _keys(secret: bytes, u: ClientId) -> Keys:
    parts = iter((b"signing", b"vrf"))
    return Keys.generate(lambda n: kdf.expand(secret, b"dordis/v1/simulated/%d/%b" % (u, next(parts)), n))
