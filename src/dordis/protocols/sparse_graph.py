"""The graph of SecAgg+: who masks and shares with whom, how many neighbours a client needs, how many rebuild a secret.

The graph is circulant (Harary), on a circle that nobody chose: Bell et al., "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead" (CCS 2020).  The neighbours of a client depend on U, the degree and the seed, never on who
answers.

Every probability is an exact fraction and is compared as such; logarithms are for printing.  The rules and why they
suffice are in docs/secagg_plus.md.  Clients check the secrecy of what the server chose; whether a round is likely to
succeed is the server's own concern.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dordis.crypto import kdf, prg
from dordis.crypto.prg import shuffle
from dordis.errors import InputError, ParametersRefused
from dordis.protocol import ClientId

BEACON_BYTES = 32


def seed(beacon: bytes, parameter_hash: bytes) -> bytes:
    """Derive the 32-byte seed of a round's graph from its beacon and its parameters.

    >>> seed(b"published randomness", bytes(32)).hex()[:16]
    '815797d91f7b0583'
    """
    if len(parameter_hash) != kdf.SECRET_BYTES:
        raise InputError(f"a parameter hash must have {kdf.SECRET_BYTES} bytes, got {len(parameter_hash)}")
    # The hash has a fixed length and stands last, so that the concatenation splits in one way only.
    return kdf.expand(beacon + parameter_hash, b"dordis/v1/graph-seed", kdf.SECRET_BYTES)


def neighbours(clients: Sequence[ClientId], k: int, seed: bytes) -> dict[ClientId, tuple[ClientId, ...]]:
    """Join each client to the k/2 next on both sides of a random circle; k >= n - 1 joins everybody.

    Neighbours are sorted and leave out the client itself; the order in which `clients` come does not matter.

    >>> neighbours([ClientId(u) for u in (2, 3, 5, 7)], 3, bytes(32))[ClientId(5)]
    (2, 3, 7)
    """
    members = sorted(clients)
    n = len(members)
    if len(set(members)) != n:
        raise ParametersRefused("a client occurs twice in the graph")
    check_degree(n, k)
    if k >= n - 1:
        return {u: tuple(v for v in members if v != u) for u in members}
    half = k // 2
    circle = [members[place] for place in permutation(n, seed)]
    around = circle[n - half :] + circle + circle[:half]
    return {u: tuple(sorted(around[i : i + half] + around[i + half + 1 : i + k + 1])) for i, u in enumerate(circle)}


def check_degree(n: int, k: int) -> None:
    """Refuse what is no degree of a circulant graph on n clients: it is even, or joins everybody."""
    if n < 1:
        raise ParametersRefused("a graph has at least one client")
    if k < n - 1 and (k < 2 or k % 2):
        raise ParametersRefused(f"the degree k = {k} of the graph must be even and at least 2, or n - 1 = {n - 1}")


def check_share_threshold(n: int, k: int, t_k: int) -> None:
    """Refuse a share threshold that no neighbourhood, its owner included, could meet."""
    check_degree(n, k)
    if not 1 <= t_k <= min(k, n - 1) + 1:
        raise ParametersRefused(f"the share threshold t_k = {t_k} must lie in 1..k + 1 = {min(k, n - 1) + 1}")


def permutation(n: int, seed: bytes) -> list[int]:
    """Shuffle 0..n-1, uniformly if the keystream is."""
    return shuffle(range(n), prg.from_seed(seed, b"dordis/v1/graph"))


FAILURE = 40
"""Anything that may go wrong does so with probability 2^-40 at most."""
REDRAWS = {"semi-honest": 0, "malicious": 64}
"""log2 of how often the server may redraw the circle: it chooses parameters once the beacon is known."""


@dataclass(frozen=True)
class Neighbourhood:
    """The graph of a round: degree k, share threshold t_k (own share included), global quorum q, and failure bounds.

    `colluders` is c_k, the most colluding neighbours assumed of an honest client.  `p_colluders`, `p_split` and
    `p_correctness` are log2 of bounds on three probabilities: that an honest client has more (for one circle), that
    the honest survivors are not connected, and that a secret cannot be rebuilt.
    """

    degree: int
    threshold: int
    quorum: int
    colluders: int
    complete: bool
    p_colluders: float
    p_split: float
    p_correctness: float

    @property
    def p_security(self) -> float:
        """Return log2 of a bound on the probability that secrecy fails, for one circle."""
        low, high = sorted((self.p_colluders, self.p_split))
        return high if low == -math.inf else high + math.log2(1 + 2.0 ** (low - high))


def solve(n: int, T: int, T_C: int, mode: str) -> Neighbourhood:
    """Find the least degree that keeps secrecy and correctness, with the least thresholds that it allows.

    Where no smaller degree will do, that is n - 1: the complete graph.

    >>> graph = solve(1000, 100, 1, "malicious")
    >>> graph.degree, graph.threshold, graph.quorum
    (64, 35, 501)
    """
    check_quorum(n, T, T_C, mode, least_quorum(n, T_C, mode))
    k = _least_degree(n, T, T_C, mode)
    t_k = least_threshold(n, T_C, mode, k)
    c_k = colluding_neighbours(n, T_C, mode, k)
    return Neighbourhood(
        degree=k,
        threshold=t_k,
        quorum=least_quorum(n, T_C, mode),
        colluders=c_k,
        complete=k == n - 1,
        p_colluders=log2(n * tail(n - 1, T_C, k, c_k)),
        p_split=log2(_falls_apart(n, T, T_C, mode, k)),
        p_correctness=log2(_cannot_rebuild(n, T, k, t_k)),
    )


def failure(mode: str) -> Fraction:
    """Return the chance, at most, that the secrecy of a sparse graph that keeps the rules fails in one round.

    Too many neighbours of someone collude; in the semi-honest mode also: the honest survivors fall apart.
    """
    return Fraction(1 if is_malicious(mode) else 2, 2**FAILURE)


def check_neighbourhood(n: int, T: int, T_C: int, mode: str, q: int, k: int, t_k: int) -> None:
    """Refuse a graph that does not keep secrecy; every client calls this at set-up."""
    check_quorum(n, T, T_C, mode, q)
    if k > n - 1:
        raise ParametersRefused(f"the degree k = {k} of the graph must be at most n - 1 = {n - 1}")
    check_share_threshold(n, k, t_k)
    least = least_threshold(n, T_C, mode, k)
    if t_k < least:
        raise ParametersRefused(f"the share threshold t_k = {t_k} must be at least {least} for degree k = {k}")
    if _falls_apart(n, T, T_C, mode, k) > Fraction(1, 2**FAILURE):
        raise ParametersRefused(f"the degree k = {k} is too small: the honest survivors may fall apart")


def check_quorum(n: int, T: int, T_C: int, mode: str, q: int) -> None:
    """Refuse a global quorum q that does not suit n, T and T_C."""
    if T_C < 0 or T < 0 or n - T <= T_C:
        raise ParametersRefused(f"T = {T} dropouts and T_C = {T_C} colluders must leave one of n = {n} clients")
    if q < least_quorum(n, T_C, mode):
        raise ParametersRefused(f"the quorum q = {q} must be at least {least_quorum(n, T_C, mode)}")
    if n - q < T:
        raise ParametersRefused(f"the dropout tolerance T = {T} must lie in 0..n - q = {n - q}")


def least_quorum(n: int, T_C: int, mode: str) -> int:
    """Return the least q: two quorums share an honest client (malicious), or one has an honest client."""
    return (n + T_C) // 2 + 1 if is_malicious(mode) else T_C + 1


def least_threshold(n: int, T_C: int, mode: str, k: int) -> int:
    """Return the least t_k that keeps secrecy in a graph of degree k."""
    if k >= n - 1:
        return least_quorum(n, T_C, mode)
    c_k = colluding_neighbours(n, T_C, mode, k)
    return k // 2 + c_k + 2 if is_malicious(mode) else c_k + 1


def colluding_neighbours(n: int, T_C: int, mode: str, k: int) -> int:
    """Return c_k: the least c that the colluders among k neighbours exceed with probability 2^-40/n at most.

    In the malicious mode with 2^-104/n, so that it holds for every circle the server can try.
    """
    allowed, total = _limit(n, mode) * math.comb(n - 1, k), 0
    for c, weight in _weights(n - 1, T_C, k):
        total += weight
        if total > allowed:
            return c
    raise AssertionError("the probabilities of all outcomes sum to 1")


def is_malicious(mode: str) -> bool:
    """Tell the modes apart, or refuse a third."""
    if mode not in REDRAWS:
        raise ParametersRefused(f"there is no mode '{mode}'")
    return mode == "malicious"


def tail(population: int, marked: int, drawn: int, most: int) -> Fraction:
    """Return the probability that more than `most` of the `drawn` are among the `marked`.

    >>> tail(population=4, marked=2, drawn=2, most=1)
    Fraction(1, 6)
    """
    total = sum(weight for _, weight in _weights(population, marked, drawn, most))
    return Fraction(total, math.comb(population, drawn))


def _weights(population: int, marked: int, drawn: int, most: int = -1) -> Iterator[tuple[int, int]]:
    """Yield x and the number of ways to draw x marked ones, from the greatest x down to `most` + 1."""
    unmarked, top = population - marked, min(marked, drawn)
    weight = math.comb(marked, top) * math.comb(unmarked, drawn - top)
    for x in range(top, max(most, drawn - unmarked - 1, -1), -1):
        yield x, weight
        weight = weight * x * (unmarked - drawn + x) // ((marked - x + 1) * (drawn - x + 1))  # an exact division


def log2(probability: Fraction) -> float:
    """Return a logarithm for printing; that of 0 is minus infinity."""
    if not probability:
        return -math.inf
    return math.log2(probability.numerator) - math.log2(probability.denominator)


def _least_degree(n: int, T: int, T_C: int, mode: str) -> int:
    """Search the degrees stretch by stretch of equal c_k: within one, failures only become rarer as k grows."""
    k = 2
    while k < n - 1:
        degrees = _stretch(n, T_C, mode, k)
        place = _first(degrees, lambda j: _is_enough(n, T, T_C, mode, j))
        if place < len(degrees):
            return degrees[place]
        k = degrees[-1] + 2
    return n - 1


def _stretch(n: int, T_C: int, mode: str, k: int) -> range:
    """Return the degrees of at least k, below the complete graph, that have the same c_k; c_k grows with k."""
    limit, c_k, degrees = _limit(n, mode), colluding_neighbours(n, T_C, mode, k), range(k, n - 1, 2)
    return degrees[: _first(degrees, lambda j: tail(n - 1, T_C, j, c_k) > limit)]


def _is_enough(n: int, T: int, T_C: int, mode: str, k: int) -> bool:
    failure = Fraction(1, 2**FAILURE)
    t_k = least_threshold(n, T_C, mode, k)
    return _falls_apart(n, T, T_C, mode, k) <= failure and _cannot_rebuild(n, T, k, t_k) <= failure


def _limit(n: int, mode: str) -> Fraction:
    """Return how often one client may have more than c_k colluding neighbours."""
    is_malicious(mode)
    return Fraction(1, n * 2 ** (FAILURE + REDRAWS[mode]))


def _falls_apart(n: int, T: int, T_C: int, mode: str, k: int) -> Fraction:
    """Bound the probability that honest survivors fall apart when T clients drop for reasons other than their place.

    That takes two disjoint runs of k/2 clients on the circle, all of them among the T + T_C missing: a union bound
    over n (n - k + 1) / 2 pairs of runs.  A malicious server drops whom it likes; there t_k alone protects.
    """
    if is_malicious(mode) or k >= n - 1:
        return Fraction(0)
    return Fraction(n * (n - k + 1) // 2 * math.comb(T + T_C, k), math.comb(n, k))


def _cannot_rebuild(n: int, T: int, k: int, t_k: int) -> Fraction:
    """Bound the probability that some neighbourhood keeps too few shares when T clients drop.

    A survivor's self-mask is rebuilt from its own share and its neighbours', the key of a dropped client from its
    neighbours' alone.
    """
    survivor = (n - T) * tail(n - 1, T, k, k + 1 - t_k)
    dropped = T * tail(n - 1, T - 1, k, k - t_k) if T else Fraction(0)
    return survivor + dropped


def _first(choices: range, holds: Callable[[int], bool]) -> int:
    """Return the place of the first choice that holds, given that all later ones do, or their number if none does."""
    end = 1
    while end < len(choices) and not holds(choices[end - 1]):
        end *= 2
    return bisect_left(choices, True, lo=end // 2, hi=min(end, len(choices)), key=holds)
