"""T_C, the largest number of colluders in a round, derived from the colluders of the whole registry.

The chance that a draw of clients has more than T_C colluders must be at most 2^-40.  A malicious server can make many
manifests, which give different draws, and use the manifest that suits it best.  In the malicious mode T_C is planned
for 2^64 manifests: the chance for one draw is at most 2^-104, and so the chance for any of 2^64 draws at most 2^-40.
"""

from bisect import bisect_left
from fractions import Fraction

from dordis.errors import InputError
from dordis.protocols import sparse_graph

BALANCED, UNIFORM, VRF, OPEN = "balanced", "uniform", "vrf", "open"


def round_colluders(selection: str, has_beacon: bool, clients: int, per_round: int, colluders: int, mode: str) -> int:
    """Return T_C, the largest number of colluders in a round, for a registry with `colluders` colluders.

    `clients` is the number of clients in the registry, `per_round` the number (with VRF selection the expected number)
    of scheduled clients of a round.  If public randomness draws them, more than T_C colluders are drawn with negligible
    chance.  Otherwise the server could select all colluders together: T_C is `colluders`.
    """
    if selection == VRF:
        return vrf_quantile(clients, per_round, colluders, mode)
    if is_drawn(selection, has_beacon):
        return window_quantile(clients, per_round, colluders, mode)
    return colluders


def is_drawn(selection: str, has_beacon: bool) -> bool:
    """Tell whether public randomness draws the clients, so that T_C is a quantile of the number of drawn colluders."""
    return selection == VRF or (selection == BALANCED and has_beacon)


def vrf_quantile(clients: int, expected: int, colluders: int, mode: str) -> int:
    """Return T_C for selection by VRF: more than T_C colluders are selected with a chance of at most 2^-40.

    Each colluder is selected independently with probability expected / clients.  In the malicious mode the chance is at
    most 2^-104 for one manifest, and so at most 2^-40 for 2^64 manifests together.

    >>> [vrf_quantile(clients=1000, expected=100, colluders=100, mode=mode) for mode in ("semi-honest", "malicious")]
    [36, 57]
    """
    _check_population(clients, expected, colluders)
    if expected == clients:
        return colluders
    # Binomial terms times clients^colluders are whole numbers: nothing is rounded.
    whole, term, count = clients**colluders, (clients - expected) ** colluders, 0
    more, bits = whole - term, sparse_graph.FAILURE + sparse_graph.REDRAWS[mode]
    while more << bits > whole:
        count += 1
        term = term * (colluders - count + 1) * expected // (count * (clients - expected))
        more -= term
    return count


def window_quantile(clients: int, count: int, colluders: int, mode: str) -> int:
    """Return T_C for `BalancedSelection` with a beacon: more than T_C colluders are selected with negligible chance.

    The clients of a round are a uniformly random set of `count` clients.  The chance that more than T_C colluders are
    among them is at most 2^-40.  In the malicious mode it is at most 2^-104 for one manifest, and so at most 2^-40 for
    2^64 manifests together.

    >>> [window_quantile(clients=1000, count=100, colluders=100, mode=mode) for mode in ("semi-honest", "malicious")]
    [34, 52]
    """
    _check_population(clients, count, colluders)
    limit = Fraction(1, 2 ** (sparse_graph.FAILURE + sparse_graph.REDRAWS[mode]))
    most = min(count, colluders)
    return bisect_left(range(most), True, key=lambda c: sparse_graph.tail(clients, colluders, count, c) <= limit)


def largest_draw_failure() -> Fraction:
    """Return a bound on the chance that more than T_C colluders are drawn for a round.

    In the malicious mode it bounds the chance that any of 2^64 draws has more than T_C colluders.
    """
    return Fraction(1, 2**sparse_graph.FAILURE)


def _check_population(clients: int, drawn: int, colluders: int) -> None:
    if not (0 < drawn <= clients and 0 <= colluders <= clients):
        raise InputError(
            f"{clients} clients, {drawn} per round and {colluders} colluders do not fit: set 0 < per_round <= clients "
            "and 0 <= colluders <= clients"
        )
