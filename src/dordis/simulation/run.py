"""A simulated run from its configuration: the application and its clients, by name, in a home in this process."""

import secrets
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from dordis.errors import InputError
from dordis.federation import run as running
from dordis.federation.run import Job, Run
from dordis.protocol import ClientId
from dordis.rounds.app import AppServer
from dordis.simulation.config import Config
from dordis.simulation.home import AppClients, Identities, SimulatedHome


@dataclass(frozen=True)
class SimulatedJob:
    """A configuration that holds together, and the clients that it is simulated with."""

    config: Config
    job: Job
    client: AppClients

    @cached_property
    def ids(self) -> tuple[ClientId, ...]:
        """Return all clients."""
        return tuple(ClientId(u) for u in range(1, self.config.federation.clients + 1))

    def home(self, identities: Identities | None = None) -> SimulatedHome:
        """Return where the clients are, with new keys if none are given."""
        known = identities or Identities(secrets.token_bytes(32), self.ids)
        return SimulatedHome(self.job, self.config.simulation, self.client, known)

    def start(self, root: Path, config: str) -> Run:
        """Begin a run in a directory of its own."""
        return Run.start(self.job, self.home(), root, config)

    def resume(self, path: Path) -> Run:
        """Go on with a run after its last finished round."""
        return Run.resume(self.job, self.home(Identities.read(path, self.ids)), path)

    def succeed(self, predecessor: Path, root: Path, config: str) -> Run:
        """Begin a run that goes on where another one ended; clients that stay keep their keys."""
        home = self.home(Identities.read(predecessor, self.ids))
        return Run.succeed(self.job, home, root, config, predecessor)


def prepare(config: Config) -> SimulatedJob:
    """Check a configuration as a whole, load the application and plan the noise."""
    app, made = running.application(config, config.simulation.seed)
    return simulated(config, app, lru_cache(maxsize=None)(lambda u: made(u - 1)))


def simulated(config: Config, app: AppServer, client: AppClients) -> SimulatedJob:
    """Check a configuration with an application that is made already."""
    noise = config.privacy.noise
    if noise.cost_only and config.simulation.fidelity != "ideal":
        raise InputError(f"only the cost of '{noise.name}' is simulated: set simulation.fidelity to 'ideal'")
    job = running.prepare(config, app)
    client(ClientId(1))
    config.simulation.dropout.model(config.simulation.seed, job.protocol.stages)
    return SimulatedJob(config, job, client)
