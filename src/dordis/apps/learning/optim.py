"""Optimisers of the server, and weights of clients by their number of samples.

Optimisers are immutable: a step takes the memory of earlier rounds as an argument, and returns the new memory.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from dordis.errors import InputError
from dordis.privacy.scaling import Floats

Memory = dict[str, Floats]


class RateSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule of the learning rate: a factor of the rate for each step of the server.

    The factor rises to 1 over `warmup` steps, and then falls along half a cosine until it is `final` at step `steps`.

    >>> [round(RateSchedule(steps=4, final=0.2, warmup=2).factor(step), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.6, 0.2, 0.2]
    """

    steps: int
    final: float = 0.0
    warmup: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < self.steps or not 0 <= self.final <= 1:
            raise InputError(
                f"a schedule has a warmup below its steps, and ends at 0..1 of the rate: not {self.warmup}, "
                f"{self.steps} and {self.final}"
            )

    def factor(self, step: int) -> float:
        """Return the factor of the learning rate at a zero-based step."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        part = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * part)) / 2


class FedAvg(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="fedavg"):
    """FedAvg: the server adds `lr` times the mean update to the model.  With a `momentum` it is FedAvgM.

    With records as the unit of privacy this is stochastic gradient descent.  A `schedule` changes the learning rate
    from round to round.

    >>> FedAvg(lr=0.5).step(np.zeros(2), np.array([2.0, 4.0]), {})[0].tolist()
    [1.0, 2.0]
    """

    lr: float = 2.2
    momentum: float = 0.0
    schedule: RateSchedule | None = None

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        _check_fraction("momentum", self.momentum)

    @property
    def has_memory(self) -> bool:
        """Tell whether the server's step depends on earlier rounds, by momentum or a schedule."""
        return self.momentum > 0 or self.schedule is not None

    def step(self, parameters: Floats, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
        """Return the parameters after a step along the mean update, and the memory for the next step."""
        rate, counted = scheduled_rate(self.lr, self.schedule, memory)
        if not self.momentum:
            return parameters + rate * mean, counted
        velocity = mean + self.momentum * memory.get("velocity", np.zeros(mean.size))
        return parameters + rate * velocity, {"velocity": velocity} | counted


class FedAdam(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="fedadam"):
    """Adam at the server (FedAdam): Reddi et al., "Adaptive Federated Optimization", 2021, algorithm 2.

    The bias of moments that start at zero is corrected, as in Adam.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    schedule: RateSchedule | None = None
    has_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        _check_fraction("beta1", self.beta1)
        _check_fraction("beta2", self.beta2)
        if not 0 < self.tau < math.inf:
            raise InputError(f"tau is positive and finite, not {self.tau}")

    def step(self, parameters: Floats, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
        """Return the parameters after a step along the mean update, and the memory for the next step."""
        first = update_average(memory, "first", mean, self.beta1)
        second = update_average(memory, "second", mean**2, self.beta2)
        step = average_without_bias(first, "first") / (np.sqrt(average_without_bias(second, "second")) + self.tau)
        rate, counted = scheduled_rate(self.lr, self.schedule, memory)
        return parameters + rate * step, first | second | counted


Optimiser = FedAvg | FedAdam


def scheduled_rate(lr: float, schedule: RateSchedule | None, memory: Memory) -> tuple[float, Memory]:
    """Return the learning rate of the next step, and the memory after this step.

    With a schedule, the memory has the number of steps taken; without one, it is empty.
    """
    if schedule is None:
        return lr, {}
    done = int(memory.get("steps", np.zeros(())))
    return lr * schedule.factor(done), {"steps": np.asarray(float(done + 1))}


def update_average(memory: Memory, name: str, value: Floats, beta: float) -> Memory:
    """Return a moving average after `value` is added: two entries of the memory, `name` and `name` + "_weight".

    The first entry is the average, the second the sum of the weights in it.  `beta` is the weight of the past.
    """
    average = beta * memory.get(name, np.zeros(value.size)) + (1 - beta) * value
    weight = beta * memory.get(f"{name}_weight", np.zeros(())) + (1 - beta)
    return {name: average, f"{name}_weight": np.asarray(weight)}


def average_without_bias(memory: Mapping[str, Floats], name: str) -> Floats:
    """Return the moving average `name`, divided by the sum of its weights to remove the bias of starting at zero."""
    average: Floats = memory[name] / memory[f"{name}_weight"]
    return average


def _check_rate(lr: float) -> None:
    if not 0 < lr < math.inf:
        raise InputError(f"the server's learning rate is positive and finite, not {lr}")


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(f"{name} lies in 0..1, below 1, not at {value}")


class SampleWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="samples"):
    """Weights of updates: a client's number of samples divided by `most`, and at most 1.

    An update is clipped before it is weighted, so the norm of a weighted update is at most the clip bound times the
    weight.  The sensitivity is the clip bound, as without weights, and the mechanism clips once more.  The clients do
    not disclose their weights, so the server cannot divide the sum by the sum of the weights.  It divides by the number
    of clients instead, which is too large, and multiplies the quotient by `correction`.  This factor follows from
    `typical`, a public guess of a client's number of samples.
    """

    most: int
    typical: float

    def __post_init__(self) -> None:
        if self.most < 1 or not 0 < self.typical < math.inf:
            raise InputError("weights need `most` of at least 1 sample, and a positive and finite `typical`")

    def weight(self, samples: int) -> float:
        """Return the weight of a client with this number of samples.

        >>> SampleWeights(100, 50.0).weight(25), SampleWeights(100, 50.0).weight(1000)
        (0.25, 1.0)
        """
        return min(samples, self.most) / self.most

    @property
    def correction(self) -> float:
        """Return the factor by which the server multiplies the mean of weighted updates.

        The factor cancels the weight of a client with `typical` samples.
        """
        return self.most / min(self.typical, self.most)
