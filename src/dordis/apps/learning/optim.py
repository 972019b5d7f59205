"""What the server does with the mean update: a step of its own.

Optimisers are values; what they remember from round to round is handed in and out.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from dordis.errors import InputError
from dordis.privacy.skellam import Floats

Memory = dict[str, Floats]


class FedAvg(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="fedavg"):
    """Go `lr` times the mean update, with the momentum of earlier ones if wanted: FedAvg, FedAvgM.

    >>> FedAvg(lr=0.5).step(np.zeros(2), np.array([2.0, 4.0]), {})[0].tolist()
    [1.0, 2.0]
    """

    lr: float = 2.2
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        _check_fraction("momentum", self.momentum)

    @property
    def remembers(self) -> bool:
        """Tell whether a step depends on earlier rounds."""
        return self.momentum > 0

    def step(self, parameters: Floats, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
        """Return the next parameters, and what to remember."""
        if not self.momentum:
            return parameters + self.lr * mean, {}
        velocity = mean + self.momentum * memory.get("velocity", np.zeros(mean.size))
        return parameters + self.lr * velocity, {"velocity": velocity}


class FedAdam(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="fedadam"):
    """Scale each coordinate by its own history: Reddi et al., "Adaptive Federated Optimization", 2021, algorithm 2.

    The moments are corrected for beginning at zero, as in Adam.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        _check_fraction("beta1", self.beta1)
        _check_fraction("beta2", self.beta2)
        if not 0 < self.tau < math.inf:
            raise InputError(f"tau is positive and finite, not {self.tau}")

    def step(self, parameters: Floats, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
        """Return the next parameters, and what to remember."""
        first = decayed(memory, "first", mean, self.beta1)
        second = decayed(memory, "second", mean**2, self.beta2)
        step = corrected(first, "first") / (np.sqrt(corrected(second, "second")) + self.tau)
        return parameters + self.lr * step, first | second


Optimiser = FedAvg | FedAdam


def decayed(memory: Memory, name: str, value: Floats, beta: float) -> Memory:
    """Return an exponential moving average of values with one more, and the weight that all have in it together."""
    average = beta * memory.get(name, np.zeros(value.size)) + (1 - beta) * value
    weight = beta * memory.get(f"{name}_weight", np.zeros(())) + (1 - beta)
    return {name: average, f"{name}_weight": np.asarray(weight)}


def corrected(memory: Mapping[str, Floats], name: str) -> Floats:
    """Return such an average, over its weight: without the pull of the zeros that it began with."""
    average: Floats = memory[name] / memory[f"{name}_weight"]
    return average


def _check_rate(lr: float) -> None:
    if not 0 < lr < math.inf:
        raise InputError(f"the server's learning rate is positive and finite, not {lr}")


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(f"{name} lies in 0..1, below 1, not at {value}")
