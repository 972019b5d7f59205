"""A loss of your own, in a client of your own: which value is exceeded in one case of ten (needs 'dordis[torch]')?

From this folder: dordis run -c app.server=your_loss:Server -c app.client=your_loss:Client -c simulation.fidelity=ideal
"""

import numpy as np
import torch

from dordis import AppClient, AppServer

torch.set_num_threads(1)  # for so few numbers more threads only wait for each other


class Client(AppClient):
    """One household: how warm it was outside, and how much power it took."""

    def __init__(self, place: int) -> None:
        rng = np.random.default_rng(place)
        self.x = torch.tensor(rng.normal(size=40), dtype=torch.float32)
        self.y = 0.5 * self.x + torch.tensor(rng.uniform(size=40), dtype=torch.float32)

    def prepare_data(self, round, model):
        """Return how far gradient descent on the pinball loss goes from the model."""
        weights = torch.tensor(model, requires_grad=True)
        optimiser = torch.optim.SGD([weights], lr=0.1)
        for _ in range(20):
            optimiser.zero_grad()
            above = self.y - weights[0] * self.x - weights[1]
            torch.maximum(0.9 * above, -0.1 * above).mean().backward()
            optimiser.step()
        return weights.detach().numpy() - model


class Server(AppServer):
    """Two weights: the slope and the 90 % quantile of what is left, 0.5 and 0.9."""

    dim = 2

    def __init__(self) -> None:
        self.weights = np.zeros(2)

    def model(self):
        return self.weights

    def use_output(self, round, aggregate) -> None:
        self.weights = self.weights + aggregate.mean

    def evaluate(self) -> dict[str, float]:
        return {"slope": float(self.weights[0]), "quantile": float(self.weights[1])}

    def state(self):
        return {"weights": self.weights}

    def restore(self, state) -> None:
        self.weights = state["weights"]
