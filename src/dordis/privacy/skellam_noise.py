"""Skellam noise from a seed: every platform draws the same integers (noise format, version 1).

The noise of a variance v is drawn from a table of integers: the Skellam pmf as masses P[x] of 128 bits, divided into
65,536 *cells* of equal mass, most of which give a sample by one look-up (docs/wire.md, section Noise).  Nothing here is
floating point, so every platform builds the same table, and the server can draw a client's noise again.  The law of a
sample is exactly P / 2^128; its total variation distance from Skellam(v) is at most (2N + 1) 2^-128 + 2^-172, where N
is `support_bound(v)`.

*Nodes* are all multiples of a width w = 2^k.  The *hat* of a node is a triangle of mass that falls to 0 at the two
neighbouring nodes; the node has one cell for each 2^-16 of this mass.  The *residual* is the pmf minus all hats.
Sample i takes its cell, and so its node, from bytes 2i and 2i + 1 of one keystream.  It takes its distance from the
node, under the hat, from the same bytes of a second keystream.  So drawing can start at any sample.  The cells after
the last node's cells *escape*: their samples are drawn by exact inversion of the residual, each with a 16-byte block of
a third keystream.  The time of a look-up may depend on the sample.
"""

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from math import isqrt
from threading import Lock
from typing import Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dordis.crypto import prg
from dordis.errors import DordisError, InputError
from dordis.kernels import table_sampling
from dordis.kernels import table_sampling as kernel
from dordis.kernels.table_sampling import PAGE
from dordis.kernels.vector_instructions import STAIR

GRID = 2**20
"""Variances are multiples of 1 / GRID."""
LARGEST_VARIANCE = 10**10
CELLS = 1 << 16
PLACES_A_ROW = 8


def round_up_variance(variance: Fraction | int) -> Fraction:
    """Return the least multiple of 2^-20 that is at least `variance`."""
    return Fraction(-(-Fraction(variance) * GRID // 1), GRID)


def check_variance(variance: Fraction | int) -> Fraction:
    """Return the variance as a Fraction; raise InputError unless it is a multiple of 2^-20 in 0 < v <= 10^10."""
    if isinstance(variance, bool) or not isinstance(variance, int | Fraction):
        raise InputError(f"a noise variance is an int or a Fraction, not {type(variance).__name__}")
    exact = Fraction(variance)
    if not 0 < exact <= LARGEST_VARIANCE:
        raise InputError("a noise variance lies above 0 and at most at 10^10")
    if GRID % exact.denominator:
        raise InputError(
            "a noise variance is a multiple of 2^-20: round it up with dordis.privacy.skellam_noise.round_up_variance"
        )
    return exact


@dataclass(frozen=True, eq=False, repr=False)
class CellTable:
    """The sampling table of one variance: cells, residual, and the search index of the residual.

    `pmf` has the masses at 0 .. X, where X is the largest sample, and `residual` the cumulative sums of the residual at
    -X .. X.  Both have a row (high word, low word) for each number of 128 bits.  `counts` has the number of cells of
    each node from 0 on; a negative node has as many as its opposite.  Cells from `first_escape` on escape.
    """

    variance: Fraction
    log_width: int
    pmf: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint32]
    stairs: npt.NDArray[np.uint32]
    """The nodes of all cells, 16 cells in a word: see `dordis.kernels.vector_instructions.STAIR`."""
    first_escape: int
    residual: npt.NDArray[np.uint64]
    index: npt.NDArray[np.uint16]
    index_shift: int
    """`index` and this shift say where to search the residual: see `dordis.kernels.table_sampling.resolve_escapes`."""

    @property
    def width(self) -> int:
        """Return w, the distance between neighbouring nodes."""
        return 1 << self.log_width

    @property
    def largest(self) -> int:
        """Return X, the largest sample that the table can give."""
        return len(self.pmf) - 1

    @property
    def nbytes(self) -> int:
        """Return the memory of the table in bytes."""
        arrays = (self.pmf, self.counts, self.stairs, self.residual, self.index)
        return sum(array.nbytes for array in arrays)

    @cached_property
    def digest(self) -> bytes:
        """Return the SHA-256 hash of the table, which the parameters of a round state for every variance in use."""
        scaled = int(self.variance * GRID)
        head = struct.pack("<QIIII", scaled, self.log_width, self.largest, self.counts.size - 1, self.first_escape)
        masses = np.ascontiguousarray(self.pmf[:, ::-1]).astype("<u8")  # 16 bytes each, low word first
        return hashlib.sha256(head + masses.tobytes() + self.counts.astype("<u4").tobytes()).digest()


def build_table(variance: Fraction | int) -> CellTable:
    """Build the sampling table of one variance: in 0.1 ms for the smallest variance, in seconds for the largest."""
    exact = check_variance(variance)
    masses = skellam_masses(exact)
    raw = b"".join(mass.to_bytes(16, "big") for mass in masses)
    pmf = np.frombuffer(raw, ">u8").astype(np.uint64).reshape(-1, 2)
    log_width = _log_width(exact)
    counts = np.trim_zeros(table_sampling.count_node_cells(pmf, 1 << log_width), "b")
    if log_width == 0:
        counts = np.trim_zeros((pmf[:, 0] >> np.uint64(48)).astype(np.uint32), "b")
    first_escape = 2 * int(counts.sum()) - int(counts[0])
    left = table_sampling.subtract_cells(pmf, counts, log_width)
    if not left.size or first_escape >= CELLS:
        raise DordisError(f"the cell table of variance {exact} covers more than the pmf")
    if not counts.all():
        raise DordisError(f"the cell table of variance {exact} leaves out a node between others")
    residual = table_sampling.accumulate_masses(left)
    check_residual(left, residual, CELLS - first_escape)
    rows = max(1, len(residual) // PLACES_A_ROW // (CELLS - first_escape))  # index rows for each escaping cell
    shift = 48 - min(16, rows.bit_length())
    index = table_sampling.build_search_index(residual, (CELLS - first_escape) << (48 - shift), shift)
    return CellTable(exact, log_width, pmf, counts, _stairs(counts), first_escape, residual, index, shift)


def check_residual(masses: npt.NDArray[np.uint64], sums: npt.NDArray[np.uint64], escapes: int) -> None:
    """Raise DordisError unless the residual is non-negative and its mass is that of the `escapes` escaping cells.

    `masses` is the residual at x = 0 .. X, the largest sample; `sums` are its cumulative sums at x = -X .. X.  With
    wrong sums the search of the sampler would read beyond the array.
    """
    if 2 * _total(masses) - _total(masses[:1]) != escapes << 112:
        raise DordisError("the residual of a cell table does not sum to the cells that escape to it")
    high, low = sums[:, 0], sums[:, 1]
    if not ((high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] >= low[:-1]))).all():
        raise DordisError("the residual of a cell table has a negative mass")
    if _total(sums[-1:]) != escapes << 112:
        raise DordisError("the cumulative sums of a cell table's residual do not end at the mass of the escaping cells")


def _total(rows: npt.NDArray[np.uint64]) -> int:
    """Return the exact sum of fewer than 2^32 numbers of 128 bits, given as rows (high word, low word)."""
    halves = (rows >> np.uint64(32), rows & np.uint64(0xFFFFFFFF))
    (top, third), (second, first) = (half.sum(axis=0, dtype=np.uint64).tolist() for half in halves)
    return int(top << 96) + int(second << 64) + int(third << 32) + int(first)


def support_bound(variance: Fraction) -> int:
    """Return N such that the pmf of Skellam(variance) is below 2^-128 at N and beyond; N bounds the size of a table."""
    return 43 + isqrt(41**2 + 240 * -(-variance.numerator // variance.denominator))


def skellam_masses(variance: Fraction) -> list[int]:
    """Return the pmf of Skellam(variance) at 0 .. X, by Miller's backward recurrence, in units of 2^-128.

    X is the last sample whose mass is not 0; the masses at -X .. X sum to exactly 2^128.
    """
    num, den, last = variance.numerator, variance.denominator, support_bound(variance)
    above, here = 0, 1 << 220
    ratios = [here]
    for j in range(last, 0, -1):
        above, here = here, above + 2 * j * den * here // num
        ratios.append(here)
    ratios.reverse()
    total = 2 * sum(ratios) - ratios[0]
    masses = [(ratio << 128) // total for ratio in ratios]
    masses[0] += (1 << 128) - (2 * sum(masses) - masses[0])
    while not masses[-1]:
        masses.pop()
    return masses


def _log_width(variance: Fraction) -> int:
    """Return k, where 2^k is the distance between nodes; it is larger for large variances, so that nodes stay few."""
    if variance < 2**17:
        return 0
    return max(k for k in range(9) if 64 * 4**k <= variance)


def _stairs(counts: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the node numbers of all cells, ascending, packed into words as `STAIR` says.

    `counts` has the number of cells of each node, by node number from 0 on; node -i has as many cells as node i.
    Escaping cells get the number of the last node.
    """
    values = np.arange(-(counts.size - 1), counts.size, dtype=np.int32)
    cells = np.full(CELLS, counts.size - 1, np.int32)
    filled = np.repeat(values, np.concatenate([counts[:0:-1], counts]))
    cells[: filled.size] = filled
    rows = cells.reshape(-1, STAIR)
    steps = np.diff(rows, axis=1) << np.arange(1, STAIR, dtype=np.int32)
    stairs: npt.NDArray[np.int32] = (rows[:, 0] << 16) | steps.sum(axis=1, dtype=np.int32)
    return stairs.view(np.uint32)


class TableCache:
    """A cache of the most recently used sampling tables, up to `limit` bytes."""

    def __init__(self, limit: int = 256 << 20) -> None:
        self._limit = limit
        self._tables: OrderedDict[Fraction, CellTable] = OrderedDict()
        self._lock = Lock()

    def get_table(self, variance: Fraction | int) -> CellTable:
        """Return the table of a variance, and build it if it is not in the cache."""
        exact = check_variance(variance)
        with self._lock:
            if exact not in self._tables:
                self._tables[exact] = build_table(exact)
                while len(self._tables) > 1 and sum(table.nbytes for table in self._tables.values()) > self._limit:
                    self._tables.popitem(last=False)  # the least recently used table
            self._tables.move_to_end(exact)
            return self._tables[exact]


TABLES = TableCache()
"""The cache of this process: tables depend on the variance alone, and large ones take seconds to build."""


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
    """Add Skellam noise of a seed to `acc` in place, modulo 2^32, or subtract it: `acc[i]` gets sample `first` + i."""
    prg.check_ring(acc, 32)
    if first < 0 or first + acc.size > LONGEST:
        raise InputError(f"a noise vector has samples 0 to 2^31 - 1; {acc.size} from {first} on are not among them")
    table = TABLES.get_table(variance)
    source = _Source(seed, table, subtract)
    prg.run_in_threads(lambda at, end: partial(source.add, acc[at:end], first + at), 0, acc.size, threads)


class AddNoise(Protocol):
    """A function that adds noise from a seed to a vector in place, modulo 2^32, or subtracts it."""

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
        """Add noise from the seed to `acc` in place, or subtract it: `acc[i]` gets sample number `first` + i."""


@dataclass(frozen=True)
class NoiseLaw:
    """A law of integer noise under which independent draws of variances a and b sum to a draw of variance a + b.

    `add` adds noise from a seed: the same samples on every machine.  `add` is a top-level function of a module, so that
    it can be pickled for other processes.  `digest` returns the hash of the table from which noise of a variance is
    drawn.
    """

    add: AddNoise
    digest: Callable[[Fraction], bytes]


def table_digest(variance: Fraction) -> bytes:
    """Return the hash of the table from which Skellam noise of a variance is drawn."""
    return TABLES.get_table(variance).digest


SKELLAM = NoiseLaw(add_noise, table_digest)


class _Source:
    """The samples of one seed's noise, drawn from one table."""

    def __init__(self, seed: bytes, table: CellTable, subtract: bool) -> None:
        self._table = table
        self._flip = np.uint32(2**32 - 1 if subtract else 0)
        self._cells, self._hats, self._escapes = (
            prg.from_seed(seed, b"dordis/v1/noise/" + use) for use in (b"cells", b"hats", b"escapes")
        )

    def add(self, acc: npt.NDArray[np.uint32], first: int) -> None:
        """Add the noise to `acc`, a few pages at a time, with the same buffers: `acc[i]` gets sample `first` + i."""
        table, skip = self._table, first % PAGE
        cell_stream, hat_stream = (
            prg.open_stream(stream, (first - skip) * 2 // prg.BLOCK) for stream in (self._cells, self._hats)
        )
        cells, hats = np.empty(2 * STEP, np.uint8), np.empty(2 * STEP, np.uint8)
        escapes = _Escapes(self._escapes, min(STEP, acc.size))
        at = 0
        while at < acc.size:
            count = min(STEP - skip, acc.size - at)
            used = -(-2 * (skip + count) // prg.BLOCK) * prg.BLOCK
            prg.fill_keystream(cell_stream, cells[:used])
            if table.log_width:
                prg.fill_keystream(hat_stream, hats[:used])
            target = acc[at : at + count]
            escaped = kernel.draw_samples(
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
    """Buffers for escapes, at most `room` at a time: samples whose cells escape, drawn by inversion of the residual."""

    def __init__(self, stream: prg.Stream, room: int) -> None:
        # A block cipher over explicit counters, because escapes of several pages need several parts of a keystream.
        self._cipher = Cipher(algorithms.AES128(stream.key), modes.ECB()).encryptor()  # noqa: S305
        self.origin = np.array([*np.frombuffer(stream.nonce, np.uint32), prg.FIRST_COUNTER], np.uint32)
        self.places = np.empty(room + 1, np.uint32)
        self.tops = np.empty(room, np.uint16)
        self.blocks = np.empty((room, 4), np.uint32)
        self._input = self.blocks.data.cast("B")
        drawn = np.empty((room + 1) * prg.BLOCK, np.uint8)  # the cipher needs a buffer one block longer than its output
        self._output, self._drawn = drawn.data, drawn.view("<u8").reshape(-1, 2)

    def resolve(self, acc: npt.NDArray[np.uint32], count: int, table: CellTable, flip: np.uint32) -> None:
        """Draw the samples of the first `count` escapes, and add each to its coordinate of `acc`."""
        self._cipher.update_into(self._input[: count * prg.BLOCK], self._output)
        kernel.resolve_escapes(
            acc, flip, self.places[:count], self.tops, self._drawn, table.residual, table.index, table.index_shift
        )
