"""Skellam noise from a seed (noise format, version 1) as the format reads: integers, lists and dictionaries."""

import hashlib
import hmac
from bisect import bisect_right
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import ceil, floor, isqrt

from tests.references import masks

PAGE = CELLS = 65_536


def skellam_masses(variance: Fraction) -> list[int]:
    """Return P[0], .., P[X]: twice their sum less P[0] is exactly 2^128."""
    num, den = variance.numerator, variance.denominator
    N = steps(variance)
    r = [0] * (N + 2)
    r[N] = 2**220
    for j in range(N, 0, -1):
        r[j - 1] = r[j + 1] + (2 * j * den * r[j]) // num
    S = r[0] + 2 * sum(r[1:])
    P = [(r[x] * 2**128) // S for x in range(N + 1)]
    P[0] += 2**128 - (P[0] + 2 * sum(P[1:]))
    X = max(x for x in range(N + 1) if P[x] > 0)
    return P[: X + 1]


def steps(variance: Fraction) -> int:
    """Return N, where the backward recurrence starts."""
    return 43 + isqrt(41**2 + 240 * ceil(variance))


class Table:
    """The cells and the residual of one variance, every list and dictionary indexed as the format indexes it."""

    def __init__(self, variance: Fraction) -> None:
        self.variance = variance
        self.P = skellam_masses(variance)
        self.X = len(self.P) - 1
        self.k = 0 if variance < 2**17 else max(k for k in range(9) if 64 * 4**k <= variance)
        self.w = 2**self.k
        self.n = self._cells_of_nodes()
        self.Hmax = max(self.n)
        self.cells = [H for H in range(-self.Hmax, self.Hmax + 1) for _ in range(self.n.get(abs(H), 0))]
        self.F = len(self.cells)
        self.left = [self.mass(x) - self.covered(x) for x in range(self.X + 1)]
        assert min(self.left) >= 0
        self.C = list(accumulate(self.left[abs(x)] for x in range(-self.X, self.X + 1)))
        assert self.C[-1] == (CELLS - self.F) * 2**112

    def mass(self, x: int) -> int:
        """Return P[x], for a negative x too."""
        return self.P[abs(x)] if abs(x) <= self.X else 0

    def _overshoot(self, H: int) -> int:
        w = self.w
        left, right = self.mass(H * w), self.mass((H + 1) * w)
        return max((w - j) * left + j * right - w * self.mass(H * w + j) for j in range(w + 1))

    def _cells_of_nodes(self) -> dict[int, int]:
        """Return n_H by H, from 0 on, where it is positive."""
        n = {}
        for H in range(self.X // self.w + 1):
            height = self.P[H * self.w]
            if self.k:
                height = self.w * height - max(self._overshoot(H - 1), self._overshoot(H))
            if height >= 2**112:
                n[H] = height // 2**112
        return n

    def covered(self, x: int) -> int:
        """Return D[x]: what the hats, each of probability 2^-16, put on x."""
        total = 0
        for H in range(floor(Fraction(x, self.w)), floor(Fraction(x, self.w)) + 2):
            total += self.n.get(abs(H), 0) * max(0, self.w - abs(x - H * self.w))
        return 2 ** (112 - 2 * self.k) * total

    def digest(self) -> bytes:
        """Return the table hash."""
        parts = [(int(self.variance * 2**20), 8), (self.k, 4), (self.X, 4), (self.Hmax, 4), (self.F, 4)]
        parts += [(mass, 16) for mass in self.P]
        parts += [(self.n.get(H, 0), 4) for H in range(self.Hmax + 1)]
        return hashlib.sha256(b"".join(value.to_bytes(size, "little") for value, size in parts)).digest()

    def invert(self, u: int) -> int:
        """Return the least x with C[x] > u."""
        return bisect_right(self.C, u) - self.X


def hkdf(seed: bytes, info: bytes) -> masks.Stream:
    """Return the key and the nonce that RFC 5869 gives without salt: one block is enough for 28 bytes."""
    extracted = hmac.digest(bytes(32), seed, "sha256")
    derived = hmac.digest(extracted, info + b"\x01", "sha256")[:28]
    return derived[:16], derived[16:]


@lru_cache(maxsize=32)
def table(variance: Fraction) -> Table:
    """Return the table of a variance; kept, because building one is slow."""
    return Table(variance)


def samples(seed: bytes, variance: Fraction, first: int, count: int) -> list[int]:
    """Return samples first .. first + count - 1."""
    drawn: list[int] = []
    while len(drawn) < count:
        page, start = divmod(first + len(drawn), PAGE)
        stop = min(PAGE, start + count - len(drawn))
        drawn += list(_page(seed, table(variance), page, stop))[start:]
    return drawn


def _page(seed: bytes, law: Table, page: int, stop: int) -> Iterator[int]:
    """Draw a page's samples from its first on, because its escapes are numbered from there."""
    cell_stream, hat_stream, escape_stream = (
        hkdf(seed, b"dordis/v1/noise/" + use) for use in (b"cells", b"hats", b"escapes")
    )
    cell_bytes = masks.keystream(cell_stream, 2 * PAGE * page, 2 * stop)
    hat_bytes = masks.keystream(hat_stream, 2 * PAGE * page, 2 * stop) if law.k else b""
    e = 0
    for i in range(stop):
        cell = cell_bytes[2 * i] + 256 * cell_bytes[2 * i + 1]
        if cell < law.F:
            L1, L2 = (hat_bytes[2 * i] % law.w, hat_bytes[2 * i + 1] % law.w) if law.k else (0, 0)
            yield law.cells[cell] * law.w + L1 - L2
        else:
            block = masks.keystream(escape_stream, 16 * (PAGE * page + e), 16)
            yield law.invert((cell - law.F) * 2**112 + int.from_bytes(block[:14], "little"))
            e += 1
