"""What the server computes on whole vectors, in a cluster: sums beside the clients, masks and noise in slices."""

from collections.abc import Callable, Collection, Sequence
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import ray

from dordis.crypto.prg import GROUP
from dordis.crypto.suite import Suite
from dordis.kernels.packing import Packed, PackedElsewhere
from dordis.kernels.ring import Vector
from dordis.privacy.noise import AddNoise
from dordis.protocol import ClientId
from dordis.protocols.vectors import Released
from dordis.simulation.ray.worker import Sum
from dordis.simulation.ray.workers import UPLOADS, Workers


class RayAccumulator:
    """A sum in parts, one in each process of clients; what a process that dies had summed is lost with it."""

    def __init__(self, workers: Workers, sum: Sum) -> None:
        self._workers, self._sum = workers, sum
        self._accepted: dict[int, list[ClientId]] = {}

    def add(self, u: ClientId, packed: Packed | PackedElsewhere) -> None:
        """Have an upload added where it is; what came here of it is empty."""
        place = self._workers.place(u)
        accepted = self._accepted.setdefault(place, [])
        accepted.append(u)
        if len(accepted) == UPLOADS:
            self._flush(place)

    def _flush(self, place: int) -> None:
        self._workers.begin(place, "add", self._sum, self._accepted.pop(place))

    def close(self) -> tuple[Vector, Collection[ClientId]]:
        """Merge the parts; return the sum, and whose uploads are in it."""
        for place in list(self._accepted):
            self._flush(place)
        total, clients = np.zeros(self._sum.dim, np.uint32), set()
        for _, (part, summed) in self._workers.ask("total", self._sum):
            if summed:
                total += part
                clients.update(summed)
        return total, clients


class RayVectors:
    """Compute in tasks of Ray over slices of a chunk, one for each processor; a task that is lost is redone."""

    def __init__(self, workers: Workers) -> None:
        self._workers, self._numbers = workers, count()
        self._slices = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def accumulator(self, chunk: int, dim: int, bits: int) -> RayAccumulator:
        """Begin the sum of a chunk."""
        return RayAccumulator(self._workers, Sum(next(self._numbers), chunk, dim, bits))

    def add_masks(
        self, suite: Suite, total: Vector, added: Sequence[Any], subtracted: Sequence[Any], bits: int
    ) -> None:
        """Add and subtract masks, modulo 2^bits."""
        if added or subtracted:
            self._add(total, masks, (suite, added, subtracted, bits))

    def remove_noise(self, total: Vector, released: Released, add: AddNoise) -> None:
        """Subtract components of noise that `add` would add, modulo 2^32."""
        if released:
            self._add(total, minus_noise, (released, add))

    def _add(self, total: Vector, compute: Callable[[Any, int, int], Vector], what: Any) -> None:
        """Add to each slice what a task computes for it."""
        task, shared = _task(compute), ray.put(what)
        step = -(-total.size // self._slices // GROUP) * GROUP
        starts = range(0, total.size, max(1, step))
        parts = [task.remote(shared, at, min(step, total.size - at)) for at in starts]
        for at, part in zip(starts, parts, strict=True):
            total[at : at + step] += ray.get(part)


@cache
def _task(compute: Callable[[Any, int, int], Vector]) -> Any:
    """Return a function as a task of Ray's: a new one would be sent to every process again."""
    return ray.remote(compute)


def masks(what: tuple[Suite, Sequence[Any], Sequence[Any], int], first: int, dim: int) -> Vector:
    """Return coordinates of the sum of masks."""
    suite, added, subtracted, bits = what
    total = np.zeros(dim, np.uint32)
    suite.prg.add_masks(total, added, subtracted, bits, first=first)
    return total


def minus_noise(what: tuple[Released, AddNoise], first: int, dim: int) -> Vector:
    """Return coordinates of minus the sum of components of noise."""
    released, add = what
    total = np.zeros(dim, np.uint32)
    for seed, variance in released:
        add(total, seed, variance, subtract=True, first=first)
    return total
