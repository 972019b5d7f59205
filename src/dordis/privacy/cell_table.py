"""The law of the noise, in integers: the Skellam pmf as 128-bit masses, cut into 65,536 cells and a residual.

Noise format, version 1.  Nothing here is floating point, so every platform builds the same table for ever: the
server must be able to draw again what a client drew.  A table's law is exactly P / 2^128; its total variation
distance to Skellam(v) is at most (2N + 1) 2^-128 + 2^-172.
"""

import hashlib
import struct
from collections import OrderedDict
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import isqrt
from threading import Lock

import numpy as np
import numpy.typing as npt

from dordis.errors import DordisError, InputError
from dordis.kernels import cell_tables
from dordis.kernels.vector import STAIR

GRID = 2**20
"""Variances are multiples of 1 / GRID."""
LARGEST_VARIANCE = 10**10
CELLS = 1 << 16
PLACES_A_ROW = 8


def rounded_up(variance: Fraction | int) -> Fraction:
    """Return the least multiple of 2^-20 that is at least `variance`."""
    return Fraction(-(-Fraction(variance) * GRID // 1), GRID)


def check_variance(variance: Fraction | int) -> Fraction:
    """Return the variance as a Fraction, or refuse it."""
    if isinstance(variance, bool) or not isinstance(variance, int | Fraction):
        raise InputError(f"a noise variance is an int or a Fraction, not {type(variance).__name__}")
    exact = Fraction(variance)
    if not 0 < exact <= LARGEST_VARIANCE:
        raise InputError("a noise variance lies above 0 and at most at 10^10")
    if GRID % exact.denominator:
        raise InputError("a noise variance is a multiple of 2^-20: round it up with dordis.privacy.noise.rounded_up")
    return exact


@dataclass(frozen=True, eq=False, repr=False)
class CellTable:
    """Hold everything that one variance needs: cells, residual, and where to start a search in it."""

    variance: Fraction
    log_width: int
    pmf: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint32]
    stairs: npt.NDArray[np.uint32]
    """H of each cell: see `dordis.kernels.vector.STAIR`."""
    first_escape: int
    residual: npt.NDArray[np.uint64]
    index: npt.NDArray[np.uint16]
    index_shift: int
    """Where to search the residual: see `dordis.kernels.cells.resolve`."""

    @property
    def width(self) -> int:
        """Return w = 2^k, the distance between nodes."""
        return 1 << self.log_width

    @property
    def largest(self) -> int:
        """Return X, the largest sample of positive probability."""
        return len(self.pmf) - 1

    @property
    def nbytes(self) -> int:
        """Return the memory held."""
        arrays = (self.pmf, self.counts, self.stairs, self.residual, self.index)
        return sum(array.nbytes for array in arrays)

    @cached_property
    def digest(self) -> bytes:
        """Return the table hash, a parameter of the round."""
        scaled = int(self.variance * GRID)
        head = struct.pack("<QIIII", scaled, self.log_width, self.largest, self.counts.size - 1, self.first_escape)
        masses = np.ascontiguousarray(self.pmf[:, ::-1]).astype("<u8")  # 16 bytes each, low word first
        return hashlib.sha256(head + masses.tobytes() + self.counts.astype("<u4").tobytes()).digest()


def build(variance: Fraction | int) -> CellTable:
    """Build the table of one variance; 0.1 ms for the smallest, a second or two for the largest."""
    exact = check_variance(variance)
    masses = skellam_masses(exact)
    raw = b"".join(mass.to_bytes(16, "big") for mass in masses)
    pmf = np.frombuffer(raw, ">u8").astype(np.uint64).reshape(-1, 2)
    log_width = _log_width(exact)
    counts = np.trim_zeros(cell_tables.node_cells(pmf, 1 << log_width), "b")
    if log_width == 0:
        counts = np.trim_zeros((pmf[:, 0] >> np.uint64(48)).astype(np.uint32), "b")
    first_escape = 2 * int(counts.sum()) - int(counts[0])
    left = cell_tables.residual_masses(pmf, counts, log_width)
    if not left.size or first_escape >= CELLS:
        raise DordisError(f"the cell table of variance {exact} covers more than the pmf")
    if not counts.all():
        raise DordisError(f"the cell table of variance {exact} leaves out a node between others")
    residual = cell_tables.accumulate(left)
    check_residual(left, residual, CELLS - first_escape)
    rows = max(1, len(residual) // PLACES_A_ROW // (CELLS - first_escape))  # for each cell that escapes
    shift = 48 - min(16, rows.bit_length())
    index = cell_tables.search_index(residual, (CELLS - first_escape) << (48 - shift), shift)
    return CellTable(exact, log_width, pmf, counts, _stairs(counts), first_escape, residual, index, shift)


def check_residual(masses: npt.NDArray[np.uint64], sums: npt.NDArray[np.uint64], escapes: int) -> None:
    """A residual has as much mass as the cells that escape to it, none of it negative, and its sums end there.

    `masses` are P[x] - D[x] for x = 0 .. X, `sums` their C[x] for x = -X .. X.  A search that ran on other sums would
    read beyond them.
    """
    if 2 * _total(masses) - _total(masses[:1]) != escapes << 112:
        raise DordisError("the residual of a cell table does not sum to the cells that escape to it")
    high, low = sums[:, 0], sums[:, 1]
    if not ((high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] >= low[:-1]))).all():
        raise DordisError("the residual of a cell table has a negative mass")
    if _total(sums[-1:]) != escapes << 112:
        raise DordisError("the sums of a cell table's residual end at another number than that of the escaping cells")


def _total(rows: npt.NDArray[np.uint64]) -> int:
    """Add 128-bit numbers, fewer than 2^32 of them, exactly."""
    halves = (rows >> np.uint64(32), rows & np.uint64(0xFFFFFFFF))
    (top, third), (second, first) = (half.sum(axis=0, dtype=np.uint64).tolist() for half in halves)
    return int(top << 96) + int(second << 64) + int(third << 32) + int(first)


def places(variance: Fraction) -> int:
    """Return N, from which on the pmf is 0 for all that its masses can tell: what a table takes grows with it."""
    return 43 + isqrt(41**2 + 240 * -(-variance.numerator // variance.denominator))


def skellam_masses(variance: Fraction) -> list[int]:
    """Return P[0..X]: the pmf of Skellam(v) by Miller's backward recurrence, as integers that sum to 2^128."""
    num, den, last = variance.numerator, variance.denominator, places(variance)
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
    """Return k: hats of width 2^k keep the nodes few where the variance is large."""
    if variance < 2**17:
        return 0
    return max(k for k in range(9) if 64 * 4**k <= variance)


def _stairs(counts: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Lay the nodes out over the cells in signed ascending order, the last also over the cells that escape."""
    values = np.arange(-(counts.size - 1), counts.size, dtype=np.int32)
    cells = np.full(CELLS, counts.size - 1, np.int32)
    filled = np.repeat(values, np.concatenate([counts[:0:-1], counts]))
    cells[: filled.size] = filled
    rows = cells.reshape(-1, STAIR)
    steps = np.diff(rows, axis=1) << np.arange(1, STAIR, dtype=np.int32)
    stairs: npt.NDArray[np.int32] = (rows[:, 0] << 16) | steps.sum(axis=1, dtype=np.int32)
    return stairs.view(np.uint32)


class TableCache:
    """Keep the tables last used, up to a number of bytes."""

    def __init__(self, limit: int = 256 << 20) -> None:
        self._limit = limit
        self._tables: OrderedDict[Fraction, CellTable] = OrderedDict()
        self._lock = Lock()

    def table(self, variance: Fraction | int) -> CellTable:
        """Return the table of a variance, built if it is not at hand."""
        exact = check_variance(variance)
        with self._lock:
            if exact not in self._tables:
                self._tables[exact] = build(exact)
                while len(self._tables) > 1 and sum(table.nbytes for table in self._tables.values()) > self._limit:
                    self._tables.popitem(last=False)  # the one used longest ago
            self._tables.move_to_end(exact)
            return self._tables[exact]


TABLES = TableCache()
"""Tables are pure functions of the variance; sharing them saves seconds and changes nothing."""
