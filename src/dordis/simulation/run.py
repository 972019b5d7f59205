"""A simulated run from its configuration: the application and its clients, by name, in a home in this process."""

import secrets
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from dordis.errors import InputError, MissingExtra
from dordis.federation import job as preparing
from dordis.federation.job import Job
from dordis.federation.run import Run
from dordis.protocol import ClientId
from dordis.rounds.app import AppClient, AppServer
from dordis.simulation.config import Config, Simulation
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


class KeptClients:
    """The clients of an application, each made when it is first asked for, and kept; processes can be sent it."""

    def __init__(self, made: AppClients) -> None:
        self._made = made
        self._kept: dict[ClientId, AppClient] = {}

    def __call__(self, u: ClientId) -> AppClient:
        """Return a client."""
        if u not in self._kept:
            self._kept[u] = self._made(u)
        return self._kept[u]

    def __reduce__(self) -> tuple[type["KeptClients"], tuple[AppClients]]:
        """Have another process make clients of its own."""
        return KeptClients, (self._made,)


def prepare(config: Config) -> SimulatedJob:
    """Check a configuration as a whole, load the application and plan the noise."""
    app, made = preparing.application(config, config.simulation.seed)
    return simulated(config, app, KeptClients(lambda u: made(u - 1)))


def simulated(config: Config, app: AppServer, client: AppClients) -> SimulatedJob:
    """Check a configuration with an application that is made already."""
    noise = config.privacy.noise
    if noise.cost_only and config.simulation.fidelity != "ideal":
        raise InputError(f"only the cost of '{noise.name}' is simulated: set simulation.fidelity to 'ideal'")
    if config.simulation.engine == "ray":
        check_ray(config.simulation)
    job = preparing.prepare(config, app)
    client(ClientId(1))
    config.simulation.dropout.model(config.simulation.seed, job.protocol.stages)
    return SimulatedJob(config, job, client)


def check_ray(settings: Simulation) -> None:
    """Ray is installed, and there is something for it to compute."""
    if settings.fidelity == "ideal":
        raise InputError("ideal fidelity is computed in one process: set simulation.engine to 'local'")
    if find_spec("ray") is None:
        raise MissingExtra("ray")
