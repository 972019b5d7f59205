"""Shamir sharing in plain integers: one limb, one point and one coefficient at a time."""

from collections.abc import Callable, Sequence

P = 2**31 - 1
Share = list[int]


def to_limbs(secret: bytes) -> list[int]:
    """Cut 32 bytes into nine limbs of 30 bits."""
    number = int.from_bytes(secret, "little")
    return [(number >> (30 * i)) % 2**30 for i in range(9)]


def to_secret(limbs: Sequence[int]) -> bytes:
    """Join nine limbs."""
    return sum(limb << (30 * i) for i, limb in enumerate(limbs)).to_bytes(32, "little")


def draw(entropy: Callable[[int], bytes]) -> int:
    """Draw one field element."""
    while True:
        value = int.from_bytes(entropy(4), "little") & 0x7FFFFFFF
        if value != P:
            return value


def split(
    secrets: Sequence[bytes], points: Sequence[int], threshold: int, entropy: Callable[[int], bytes]
) -> list[list[Share]]:
    """Share every secret: for each point, for each secret, nine numbers."""
    coefficients = [[to_limbs(secret) for secret in secrets]]
    coefficients += [[[draw(entropy) for _ in range(9)] for _ in secrets] for _ in range(threshold - 1)]
    return [
        [
            [sum(coefficients[k][s][limb] * x**k for k in range(threshold)) % P for limb in range(9)]
            for s in range(len(secrets))
        ]
        for x in points
    ]


def interpolate(points: Sequence[int], values: Sequence[int], x: int) -> int:
    """Evaluate at x the polynomial through the values, by Lagrange's formula."""
    total = 0
    for i, xi in enumerate(points):
        term = values[i]
        for j, xj in enumerate(points):
            if j != i:
                term = term * (x - xj) * pow(xi - xj, -1, P) % P
        total += term
    return total % P


def coefficients(points: Sequence[int], values: Sequence[int]) -> list[int]:
    """Return the coefficients, constant term first, of the polynomial through the values."""
    result = [0] * len(points)
    for i, xi in enumerate(points):
        basis = [values[i] % P]
        for j, xj in enumerate(points):
            if j != i:
                scale = pow(xi - xj, -1, P)
                by_x, by_constant = [0, *basis], [*basis, 0]
                basis = [(a - xj * b) * scale % P for a, b in zip(by_x, by_constant, strict=True)]
        result = [(a + b) % P for a, b in zip(result, basis, strict=True)]
    return result
