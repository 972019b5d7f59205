"""The configuration of a simulated run: what `dordis run` reads."""

from typing import Literal

from dordis.federation.config import Count, RunConfig, Section
from dordis.federation.manifest import HERE
from dordis.simulation.availability import DropoutModel, Rate


class Simulation(Section, frozen=True):
    """What is simulated: `seed` covers data, sampling and dropout; secrets come from the operating system."""

    fidelity: Literal["full", "ideal"] = "full"
    seed: Count = 0
    dropout: DropoutModel = Rate(0.2)
    engine: Literal["local", "ray"] = "local"
    """Where clients compute: in this process, or in processes of a cluster of Ray."""
    workers: Count = 0
    """Processes of Ray that clients are spread over; 0: as many as the cluster has processors."""

    @property
    def where(self) -> str:
        """Say where clients compute, as far as the settings tell."""
        return HERE if self.engine == "local" else "in processes of Ray"


class Config(RunConfig, frozen=True):
    """All settings of a run, and of the simulation of its clients.

    >>> Config().federation.clients
    100
    """

    simulation: Simulation = Simulation()
