"""T_C, the colluders of a round, from those of the whole registry: what is drawn at random contains few of them.

In the malicious mode the server may try manifests until it likes what they draw, by lot or by permutation.  2^64 tries
are provided for, as with the circles of SecAgg+: what fails once in 2^104 draws fails with a chance of 2^-40 in the one
that suits the server best.
"""

from bisect import bisect_left
from fractions import Fraction

from dordis.errors import InputError
from dordis.protocols import neighbourhood

BALANCED, UNIFORM, VRF = "balanced", "uniform", "vrf"


def round_colluders(selection: str, has_beacon: bool, clients: int, per_round: int, colluders: int, mode: str) -> int:
    """Return T_C, the colluders that a round may have, if the registry has so many.

    Without a beacon nothing binds the draw of a malicious server, and T_C is all of them.
    """
    if selection == VRF:
        return lot_quantile(clients, per_round, colluders, mode)
    if is_drawn(selection, has_beacon):
        return window_quantile(clients, per_round, colluders, mode)
    return colluders


def is_drawn(selection: str, has_beacon: bool) -> bool:
    """Tell whether clients are drawn by public randomness, so that T_C is a quantile."""
    return selection == VRF or (selection == BALANCED and has_beacon)


def lot_quantile(clients: int, expected: int, colluders: int, mode: str) -> int:
    """Return how many of the colluders of a whole registry a round of `Verifiable` contains, but for 2^-40: its T_C.

    Each of them is selected with probability expected / clients.  In the malicious mode but for 2^-104, so that it
    holds for every manifest the server can try.

    >>> [lot_quantile(clients=1000, expected=100, colluders=100, mode=mode) for mode in ("semi-honest", "malicious")]
    [36, 57]
    """
    _check_population(clients, expected, colluders)
    if expected == clients:
        return colluders
    # Binomial terms times clients^colluders are whole numbers: nothing is rounded.
    whole, term, count = clients**colluders, (clients - expected) ** colluders, 0
    more, bits = whole - term, neighbourhood.FAILURE + neighbourhood.REDRAWS[mode]
    while more << bits > whole:
        count += 1
        term = term * (colluders - count + 1) * expected // (count * (clients - expected))
        more -= term
    return count


def window_quantile(clients: int, count: int, colluders: int, mode: str) -> int:
    """Return how many of the colluders of a whole registry a window of `Balanced` with a beacon contains: its T_C.

    The window is a set of `count` clients, each set as likely as any other.  The chances are those of `lot_quantile`.

    >>> [window_quantile(clients=1000, count=100, colluders=100, mode=mode) for mode in ("semi-honest", "malicious")]
    [34, 52]
    """
    _check_population(clients, count, colluders)
    limit = Fraction(1, 2 ** (neighbourhood.FAILURE + neighbourhood.REDRAWS[mode]))
    most = min(count, colluders)
    return bisect_left(range(most), True, key=lambda c: neighbourhood.tail(clients, colluders, count, c) <= limit)


def draw_failure() -> Fraction:
    """Return the chance, at most, that a round whose clients are drawn has more colluders than the quantile.

    In the malicious mode it is for the draw that suits the server best, of 2^64.
    """
    return Fraction(1, 2**neighbourhood.FAILURE)


def _check_population(clients: int, drawn: int, colluders: int) -> None:
    if not (0 < drawn <= clients and 0 <= colluders <= clients):
        raise InputError(
            f"of {clients} clients, {drawn} a round and {colluders} colluders: need 0 < clients a round <= clients and "
            "0 <= colluders <= clients"
        )
