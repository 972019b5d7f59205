"""Make and run whole jobs in tests."""

from dordis.config.reading import read_config
from dordis.config.schema import Config

TOY = (
    "app.server=tests.simulation.toys:Server",
    "app.client=tests.simulation.toys:Client",
    "federation.clients=12",
    "federation.per_round=6",
    "federation.rounds=3",
    "simulation.dropout.kind=none",
)


def settings_of(*keys: str) -> Config:
    """Return a configuration of the toy application, with some settings of its own."""
    return read_config(keys=[*TOY, *keys])
