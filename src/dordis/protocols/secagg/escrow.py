"""The seam between secret sharing and noise: which secrets a client puts in escrow, and which a given U3 releases.

SecAgg shares a tuple of secrets for each chunk and releases those that `due` names; it does not know that they are
seeds of noise.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dordis.kernels.ring import Vector
from dordis.privacy.noise import add_noise
from dordis.privacy.xnoise import Due, NoisePlan
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters

KEY, SELF_MASK, FIRST_SEED = 0, 1, 2
"""The places of the secrets that a client shares for a chunk."""


@dataclass(frozen=True)
class Escrow:
    """The escrowed secrets of one chunk: the seeds of its removable noise."""

    parameters: Parameters
    chunk: int

    @property
    def plan(self) -> NoisePlan:
        """Return the noise plan of the chunk."""
        return self.parameters.plans[self.chunk]

    @property
    def shared(self) -> int:
        """Return how many secrets a client shares for this chunk: masking key, self-mask seed, escrowed seeds."""
        return 2 + len(self.plan.removable)

    def due(self, survivors: Collection[ClientId]) -> Due:
        """Return, for each member of U3, the escrowed secrets to release."""
        return self.parameters.due(self.chunk, survivors)

    def add_noise(self, vector: Vector, base: Sequence[bytes], removable: Sequence[bytes]) -> None:
        """Add all components of one client to its input."""
        for seed, variance in zip((*base, *removable), self._variances, strict=True):
            add_noise(vector, seed, variance)

    def noise(self, base: Sequence[bytes], removable: Sequence[bytes]) -> list[Vector]:
        """Return the components of one client."""
        span = self.parameters.chunks[self.chunk]
        components = [np.zeros(span.stop - span.start, np.uint32) for _ in (*base, *removable)]
        for component, seed, variance in zip(components, (*base, *removable), self._variances, strict=True):
            add_noise(component, seed, variance)
        return components

    @property
    def _variances(self) -> tuple[Fraction, ...]:
        return (*self.plan.base, *self.plan.removable)
