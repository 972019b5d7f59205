"""An application of your own: the mean height of all clients; from this folder:

dordis run -c app.server=heights:Height -c app.client=heights:Person -c simulation.fidelity=ideal
"""

import numpy as np

from dordis import AppClient, AppServer


class Height(AppServer):
    """Learn the mean height of all clients, in units of two metres."""

    def __init__(self) -> None:
        self.mean = 0.0

    @property
    def dim(self) -> int:
        return 1

    def use_output(self, round, aggregate) -> None:
        self.mean = float(aggregate.mean[0])

    def evaluate(self) -> dict[str, float]:
        return {"height": 2 * self.mean}

    def result(self) -> float:
        return 2 * self.mean


class Person(AppClient):
    """A client, constructed with its zero-based index."""

    def __init__(self, place: int) -> None:
        self.height = 1.6 + 0.01 * (place % 40)

    def prepare_data(self, round, model):
        return np.array([self.height / 2])
