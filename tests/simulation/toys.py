"""A small application for tests of whole runs: every client holds a vector, the server keeps the last private mean."""

import numpy as np

from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.rounds.app import AppClient, AppServer


class Server(AppServer):
    def __init__(self, dim=40, size=0.1, poison=""):
        self._dim, self.mean, self.rounds = dim, np.zeros(dim), 0

    @property
    def dim(self):
        return self._dim

    def model(self):
        return self.mean

    def use_output(self, round, aggregate):
        self.mean = aggregate.mean
        self.rounds += 1

    def evaluate(self):
        return {"mean": float(self.mean.mean()), "rounds": float(self.rounds)}

    def state(self):
        return {"mean": self.mean, "rounds": np.array(self.rounds)}

    def restore(self, state):
        self.mean, self.rounds = state["mean"], int(state["rounds"])


class Client(AppClient):
    """Client 0 may be poisoned: with a vector that is too long, or not finite."""

    def __init__(self, place, dim=40, size=0.1, poison=""):
        self._update = np.random.default_rng(place).normal(0.0, size, dim)
        if place == 0 and poison == "long":
            self._update = np.zeros(dim + 1)
        if place == 0 and poison == "infinite":
            self._update[3] = np.nan

    def prepare_data(self, round, model):
        return self._update


class Own(DSkellam):
    """A mechanism of one's own: Skellam's under another class."""

    made_here = True


class Toy(DSkellam, frozen=True, tag="tests.simulation.toys:Toy"):
    """A mechanism of somebody else's, under a name of its own, which the ledger charges by its prices."""

    has_price_list = True
    description = "toy noise, for a test"


class Growing(AppServer):
    """The first round has short updates, the others long ones; every mean is kept."""

    def __init__(self, short=40, long=3000, more=0):
        self._dims, self._more, self.means, self.deviations = (short, long), more, [], []

    @property
    def dim(self):
        return self._dims[min(len(self.means), 1)] + (self._more if self.means else 0)

    @property
    def dims(self):
        return self._dims

    def use_output(self, round, aggregate):
        self.means.append(aggregate.mean)
        self.deviations.append(round.deviation)

    def evaluate(self):
        return {"mean": float(self.means[-1].mean())}

    def state(self):
        return {f"mean{i}": mean for i, mean in enumerate(self.means)}

    def restore(self, state):
        self.means = [state[f"mean{i}"] for i in range(len(state))]


class Half(AppClient):
    """Half of the largest norm, the same in every coordinate of the round."""

    def __init__(self, place, short=40, long=3000, more=0):
        self._dims = (short, long)

    def prepare_data(self, round, model):
        dim = self._dims[min(round.number - 1, 1)]
        return np.full(dim, 0.5 / np.sqrt(dim))
