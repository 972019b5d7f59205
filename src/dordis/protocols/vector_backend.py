"""The server's computations on whole vectors: it adds uploads, removes masks, and subtracts noise."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dordis.crypto.suite import Suite
from dordis.kernels.ring import Packed, Vector, add_packed
from dordis.privacy.skellam_noise import AddNoise
from dordis.protocol import ClientId

Released = Sequence[tuple[bytes, Fraction]]
"""The seed and the variance of each noise component whose seed was released to the server."""


class Accumulator:
    """The running sum of the uploads of one chunk, in this process."""

    def __init__(self, dim: int, bits: int) -> None:
        self._total: Vector = np.zeros(dim, np.uint32)
        self._bits = bits
        self._clients: list[ClientId] = []

    def add(self, u: ClientId, packed: Packed) -> None:
        """Add the packed upload of client `u` to the sum; raise InputError, without adding, if it is malformed."""
        add_packed(self._total, packed, self._bits)
        self._clients.append(u)

    def close(self) -> tuple[Vector, Collection[ClientId]]:
        """Return the sum, modulo 2^32, and the clients whose uploads are in the sum."""
        return self._total, self._clients


@dataclass
class Vectors:
    """The server's computations on whole vectors, in this process; `threads` threads compute masks in parallel.

    A subclass may compute in worker processes instead, with the same results.
    """

    threads: int = 1

    def accumulator(self, chunk: int, dim: int, bits: int) -> Accumulator:
        """Return a new accumulator for the sum of a chunk of `dim` coordinates, uploaded in `bits` bits each."""
        return Accumulator(dim, bits)

    def add_masks(
        self, suite: Suite, total: Vector, added: Sequence[Any], subtracted: Sequence[Any], bits: int
    ) -> None:
        """Add masks to `total` and subtract others, in place, modulo 2^bits; masks are given as keystreams."""
        suite.prg.add_masks(total, added, subtracted, bits, threads=self.threads)

    def remove_noise(self, total: Vector, released: Released, add: AddNoise) -> None:
        """Subtract the noise of all released seeds from `total`, in place, modulo 2^32; `add` draws the noise."""
        for seed, variance in released:
            add(total, seed, variance, subtract=True)


LOCAL = Vectors()
