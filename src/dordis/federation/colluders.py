"""How many colluders a round selected by lot may contain: the T_C that its noise must cover."""

from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from dordis.errors import InputError

NEGLIGIBLE = Fraction(1, 2**40)


def colluder_quantile(
    clients: int, expected: Fraction | int, colluding: Fraction | int, tail: Fraction = NEGLIGIBLE
) -> int:
    """Return the least number that the colluders in one round of `Verifiable` exceed with probability at most `tail`.

    Of N `clients` at most the fraction `colluding` collude, and each is selected with probability expected / N.

    >>> colluder_quantile(clients=1000, expected=100, colluding=Fraction(1, 10))
    36
    """
    if not (0 < expected <= clients and 0 <= colluding <= 1 and 0 < tail < 1):
        raise InputError("need 0 < expected <= clients, a colluding fraction in 0..1 and a tail between 0 and 1")
    K, p = int(colluding * clients), Fraction(expected) / clients
    if p == 1:
        return K
    # Each term P[X = c] is rounded down and the goal up, so that the tail is never taken for less than it is:
    # at an exact tie the answer may be one more.
    down, up = (Context(80, rounding, MIN_EMIN, MAX_EMAX) for rounding in (ROUND_FLOOR, ROUND_CEILING))
    goal = up.divide(Decimal(tail.denominator - tail.numerator), Decimal(tail.denominator))
    odds = down.divide(Decimal(p.numerator), Decimal(p.denominator - p.numerator))
    miss = down.divide(Decimal(p.denominator - p.numerator), Decimal(p.denominator))
    term = Decimal(1)
    for _ in range(K):
        term = down.multiply(term, miss)
    total, c = term, 0
    while total < goal and c < K:
        term = down.divide(down.multiply(down.multiply(term, odds), Decimal(K - c)), Decimal(c + 1))
        total, c = down.add(total, term), c + 1
    return c
