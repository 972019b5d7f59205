"""Skellam noise from a seed: the same integers on every platform, any slice of them (noise format, version 1).

Sample i takes its cell from bytes 2i, 2i + 1 of one keystream and its hat from those of another; cells past the
last node escape to an exact inversion of the residual with a 16-byte block of a third.  Look-ups are not
constant-time in the sample.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dordis.crypto import prg
from dordis.errors import InputError
from dordis.kernels import cells as kernel
from dordis.kernels.cells import PAGE
from dordis.privacy.cell_table import TABLES, CellTable, rounded_up

__all__ = ["SKELLAM", "NoiseLaw", "add_noise", "noise", "rounded_up"]

LONGEST = 2**31
STEP = 2 * PAGE
"""Samples drawn in one step: 256 KiB of each keystream."""


def noise(seed: bytes, variance: Fraction | int, dim: int) -> npt.NDArray[np.int32]:
    """Return `dim` samples of Skellam(variance), a function of the seed alone.

    >>> noise(bytes(range(32)), 4, 8).tolist()
    [-2, -1, 2, 0, -1, 1, -1, -5]
    """
    if not 0 <= dim <= LONGEST:
        raise InputError(f"a noise vector has 0 to 2^31 samples, not {dim}")
    samples = np.zeros(dim, np.uint32)
    add_noise(samples, seed, variance)
    return samples.view(np.int32)


def add_noise(
    acc: npt.NDArray[np.uint32],
    seed: bytes,
    variance: Fraction | int,
    *,
    subtract: bool = False,
    first: int = 0,
    threads: int = 1,
) -> None:
    """Add, or subtract, samples first, first + 1, .. to acc in place, modulo 2^32."""
    prg.check_ring(acc, 32)
    if first < 0 or first + acc.size > LONGEST:
        raise InputError(f"a noise vector has samples 0 to 2^31 - 1; {acc.size} from {first} on are not among them")
    table = TABLES.table(variance)
    source = _Source(seed, table, subtract)
    prg.in_threads(lambda at, end: partial(source.add, acc[at:end], first + at), 0, acc.size, threads)


class AddNoise(Protocol):
    """Add, or subtract, samples first, first + 1, .. of one seed to a vector in place, modulo 2^32."""

    def __call__(
        self,
        acc: npt.NDArray[np.uint32],
        seed: bytes,
        variance: Fraction,
        /,
        *,
        subtract: bool = False,
        first: int = 0,
    ) -> None:
        """Add the samples."""


@dataclass(frozen=True)
class NoiseLaw:
    """A law of integer noise that adds up: independent draws of variances a and b sum to one of variance a + b.

    `add` is a function of a module, so that it can be sent to other processes; the same seed gives the same samples on
    every machine.  `digest` is the hash of whatever the samples of a variance depend on beside the seed.
    """

    add: AddNoise
    digest: Callable[[Fraction], bytes]


def table_digest(variance: Fraction) -> bytes:
    """Return the hash of the table from which Skellam noise of a variance is drawn."""
    return TABLES.table(variance).digest


SKELLAM = NoiseLaw(add_noise, table_digest)


class _Source:
    """Draw one seed's samples from one table."""

    def __init__(self, seed: bytes, table: CellTable, subtract: bool) -> None:
        self._table = table
        self._flip = np.uint32(2**32 - 1 if subtract else 0)
        self._cells, self._hats, self._escapes = (
            prg.from_seed(seed, b"dordis/v1/noise/" + use) for use in (b"cells", b"hats", b"escapes")
        )

    def add(self, acc: npt.NDArray[np.uint32], first: int) -> None:
        """Add samples first, first + 1, .. to acc, a few pages at a time, all through the same buffers."""
        table, skip = self._table, first % PAGE
        cell_stream, hat_stream = (
            prg.start(stream, (first - skip) * 2 // prg.BLOCK) for stream in (self._cells, self._hats)
        )
        cells, hats = np.empty(2 * STEP, np.uint8), np.empty(2 * STEP, np.uint8)
        escapes = _Escapes(self._escapes, min(STEP, acc.size))
        at = 0
        while at < acc.size:
            count = min(STEP - skip, acc.size - at)
            used = -(-2 * (skip + count) // prg.BLOCK) * prg.BLOCK
            prg.generate(cell_stream, cells[:used])
            if table.log_width:
                prg.generate(hat_stream, hats[:used])
            target = acc[at : at + count]
            escaped = kernel.draw(
                target,
                self._flip,
                cells.view("<u2")[: skip + count],
                hats.view("<u2")[: skip + count],
                table.stairs,
                table.log_width,
                table.first_escape,
                first + at,
                escapes.origin,
                escapes.places,
                escapes.tops,
                escapes.blocks,
            )
            if escaped:
                escapes.resolve(target, escaped, table, self._flip)
            at, skip = at + count, 0


class _Escapes:
    """Hold the escapes of one step, and draw them by inversion of the residual."""

    def __init__(self, stream: prg.Stream, room: int) -> None:
        # A block cipher over explicit counters: escapes of several pages are several runs of one keystream.
        self._cipher = Cipher(algorithms.AES128(stream.key), modes.ECB()).encryptor()  # noqa: S305
        self.origin = np.array([*np.frombuffer(stream.nonce, np.uint32), prg.FIRST_COUNTER], np.uint32)
        self.places = np.empty(room + 1, np.uint32)
        self.tops = np.empty(room, np.uint16)
        self.blocks = np.empty((room, 4), np.uint32)
        self._input = self.blocks.data.cast("B")
        drawn = np.empty((room + 1) * prg.BLOCK, np.uint8)  # the cipher wants a block more than it writes
        self._output, self._drawn = drawn.data, drawn.view("<u8").reshape(-1, 2)

    def resolve(self, acc: npt.NDArray[np.uint32], count: int, table: CellTable, flip: np.uint32) -> None:
        """Add the first `count` escapes to their places in acc."""
        self._cipher.update_into(self._input[: count * prg.BLOCK], self._output)
        kernel.resolve(
            acc, flip, self.places[:count], self.tops, self._drawn, table.residual, table.index, table.index_shift
        )
