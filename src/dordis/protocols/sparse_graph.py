"""The graph of SecAgg+: which clients are neighbours, and so share masks and secrets; its degree and share threshold.

The graph is circulant (Harary), on a random circle: Bell et al., "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead" (CCS 2020).  The neighbours of a client depend on U, the degree and the seed, never on
dropouts.  Symbols: U are the n clients of the round, of which at most T drop out and at most T_C collude; k is the
degree, t_k the share threshold, q the quorum, and c_k the largest number of colluding neighbours that is assumed for an
honest client (`colluding_neighbours`).

Every probability is computed and compared as an exact fraction; logarithms are only printed.  docs/secagg_plus.md has
the rules and their proofs.  Every client checks that the graph keeps inputs secret.  Only the server checks that the
round is likely to succeed.
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
    # The hash is last and has a fixed length, so the concatenation is unambiguous.
    return kdf.expand(beacon + parameter_hash, b"dordis/v1/graph-seed", kdf.SECRET_BYTES)


def neighbours(clients: Sequence[ClientId], k: int, seed: bytes) -> dict[ClientId, tuple[ClientId, ...]]:
    """Return each client's neighbours: the k/2 nearest on each side on a random circle, or all others if k >= n - 1.

    Neighbours are sorted and exclude the client itself; the order of `clients` does not matter.

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
    """Raise ParametersRefused unless n clients can have k neighbours each: k even and at least 2, or k >= n - 1."""
    if n < 1:
        raise ParametersRefused("a graph has at least one client")
    if k < n - 1 and (k < 2 or k % 2):
        raise ParametersRefused(f"the degree k = {k} of the graph must be even and at least 2, or n - 1 = {n - 1}")


def check_share_threshold(n: int, k: int, t_k: int) -> None:
    """Raise ParametersRefused unless t_k is in 1..k + 1.

    Shares of a secret are held by k + 1 clients: the owner of the secret, and the k neighbours of the owner.
    """
    check_degree(n, k)
    if not 1 <= t_k <= min(k, n - 1) + 1:
        raise ParametersRefused(f"the share threshold t_k = {t_k} must lie in 1..k + 1 = {min(k, n - 1) + 1}")


def permutation(n: int, seed: bytes) -> list[int]:
    """Return a permutation of 0..n-1 that the seed determines, pseudorandom if the seed is random."""
    return shuffle(range(n), prg.from_seed(seed, b"dordis/v1/graph"))


FAILURE = 40
"""Each failure of a graph (see `Neighbourhood`) may have a probability of at most 2^-FAILURE."""
REDRAWS = {"semi-honest": 0, "malicious": 64}
"""By mode, log2 of the number of circles that a server can try: once it knows the beacon, a malicious server can vary
the parameters, and each variation gives another circle."""


@dataclass(frozen=True)
class Neighbourhood:
    """The graph of a round: degree k, share threshold t_k (own share included), global quorum q, and failure bounds.

    `colluders` is c_k, the largest number of colluding neighbours that is assumed for an honest client.  Three fields
    are log2 of bounds on probabilities, for one random order of the clients: `p_colluders` for the event that some
    honest client has more than c_k colluding neighbours, `p_split` for the event that the honest survivors are not
    connected, and `p_correctness` for the event that some secret cannot be rebuilt.
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
        """Return log2 of a bound on the probability that the event of `p_colluders` or of `p_split` occurs.

        If neither occurs, inputs stay secret.
        """
        low, high = sorted((self.p_colluders, self.p_split))
        return high if low == -math.inf else high + math.log2(1 + 2.0 ** (low - high))


def solve(n: int, T: int, T_C: int, mode: str) -> Neighbourhood:
    """Return the graph with the least degree, t_k and quorum that keep inputs secret and let secrets be rebuilt.

    At most T of the n clients drop out, and at most T_C collude.  Each failure has a probability of at most 2^-FAILURE.
    If no smaller degree suffices, the result is the complete graph, of degree n - 1.

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
    """Return a bound on the probability that the sparse graph of a round fails to keep inputs secret.

    It holds for every graph that `check_neighbourhood` accepts.  Inputs may become known if an honest client has too
    many colluding neighbours or, in the semi-honest mode, if the honest survivors are not connected.
    """
    return Fraction(1 if is_malicious(mode) else 2, 2**FAILURE)


def check_neighbourhood(n: int, T: int, T_C: int, mode: str, q: int, k: int, t_k: int) -> None:
    """Raise ParametersRefused unless quorum q, degree k and share threshold t_k keep the clients' inputs secret.

    At most T of n clients drop out, and at most T_C collude.  Every client calls this at set-up.  A graph that passes
    may still fail, with the small probability `failure`.
    """
    check_quorum(n, T, T_C, mode, q)
    if k > n - 1:
        raise ParametersRefused(f"the degree k = {k} of the graph must be at most n - 1 = {n - 1}")
    check_share_threshold(n, k, t_k)
    least = least_threshold(n, T_C, mode, k)
    if t_k < least:
        raise ParametersRefused(f"the share threshold t_k = {t_k} must be at least {least} for degree k = {k}")
    if _falls_apart(n, T, T_C, mode, k) > Fraction(1, 2**FAILURE):
        raise ParametersRefused(f"the degree k = {k} is too small: the honest survivors may not be connected")


def check_quorum(n: int, T: int, T_C: int, mode: str, q: int) -> None:
    """Raise ParametersRefused if q is below `least_quorum`, or if T dropouts leave fewer than q, or nobody honest."""
    if T_C < 0 or T < 0 or n - T <= T_C:
        raise ParametersRefused(f"T = {T} dropouts and T_C = {T_C} colluders must leave one of n = {n} clients")
    if q < least_quorum(n, T_C, mode):
        raise ParametersRefused(f"the quorum q = {q} must be at least {least_quorum(n, T_C, mode)}")
    if n - q < T:
        raise ParametersRefused(f"the dropout tolerance T = {T} must lie in 0..n - q = {n - q}")


def least_quorum(n: int, T_C: int, mode: str) -> int:
    """Return the size of the least quorum of n clients, of which at most T_C collude.

    In the malicious mode any two quorums share an honest client; in the semi-honest mode each quorum contains one.
    """
    return (n + T_C) // 2 + 1 if is_malicious(mode) else T_C + 1


def least_threshold(n: int, T_C: int, mode: str, k: int) -> int:
    """Return the least share threshold, t_k, that keeps inputs secret on a graph of degree k."""
    if k >= n - 1:
        return least_quorum(n, T_C, mode)
    c_k = colluding_neighbours(n, T_C, mode, k)
    return k // 2 + c_k + 2 if is_malicious(mode) else c_k + 1


def colluding_neighbours(n: int, T_C: int, mode: str, k: int) -> int:
    """Return c_k: the least c such that more than c of a client's k neighbours collude with probability <= 2^-40/n.

    In the malicious mode this probability is at most 2^-104/n for one graph.  So it is at most 2^-40/n for all 2^64
    graphs together that the server can try (`REDRAWS`).
    """
    allowed, total = _limit(n, mode) * math.comb(n - 1, k), 0
    for c, weight in _weights(n - 1, T_C, k):
        total += weight
        if total > allowed:
            return c
    raise AssertionError("the probabilities of all outcomes sum to 1")


def is_malicious(mode: str) -> bool:
    """Tell whether the mode is `malicious`; raise ParametersRefused for an unknown mode."""
    if mode not in REDRAWS:
        raise ParametersRefused(f"there is no mode '{mode}'")
    return mode == "malicious"


def tail(population: int, marked: int, drawn: int, most: int) -> Fraction:
    """Return the probability that `drawn` of `population` elements include more than `most` of the `marked` elements.

    >>> tail(population=4, marked=2, drawn=2, most=1)
    Fraction(1, 6)
    """
    total = sum(weight for _, weight in _weights(population, marked, drawn, most))
    return Fraction(total, math.comb(population, drawn))


def _weights(population: int, marked: int, drawn: int, most: int = -1) -> Iterator[tuple[int, int]]:
    """Yield x and the number of samples of `drawn` elements of which x are marked, from the greatest x to `most` + 1.

    `marked` of the `population` are marked.  With the default of `most` x goes down to the least possible number.
    """
    unmarked, top = population - marked, min(marked, drawn)
    weight = math.comb(marked, top) * math.comb(unmarked, drawn - top)
    for x in range(top, max(most, drawn - unmarked - 1, -1), -1):
        yield x, weight
        weight = weight * x * (unmarked - drawn + x) // ((marked - x + 1) * (drawn - x + 1))  # an exact division


def log2(probability: Fraction) -> float:
    """Return the binary logarithm of a probability, for printing; minus infinity for 0."""
    if not probability:
        return -math.inf
    return math.log2(probability.numerator) - math.log2(probability.denominator)


def _least_degree(n: int, T: int, T_C: int, mode: str) -> int:
    """Return the least degree k for which `_is_enough` is true, or n - 1, the degree of the complete graph.

    Degrees with the same c_k (`colluding_neighbours`) are searched together.  Among them both probabilities in
    `_is_enough` fall as k grows, so that bisection finds the least degree.
    """
    k = 2
    while k < n - 1:
        degrees = _stretch(n, T_C, mode, k)
        place = _first(degrees, lambda j: _is_enough(n, T, T_C, mode, j))
        if place < len(degrees):
            return degrees[place]
        k = degrees[-1] + 2
    return n - 1


def _stretch(n: int, T_C: int, mode: str, k: int) -> range:
    """Return the degrees k, k + 2, ... below n - 1 that have the same c_k as k; c_k never falls as the degree grows."""
    limit, c_k, degrees = _limit(n, mode), colluding_neighbours(n, T_C, mode, k), range(k, n - 1, 2)
    return degrees[: _first(degrees, lambda j: tail(n - 1, T_C, j, c_k) > limit)]


def _is_enough(n: int, T: int, T_C: int, mode: str, k: int) -> bool:
    """Tell whether both failures of a graph of degree k are rare: honest survivors not connected, secrets lost."""
    failure = Fraction(1, 2**FAILURE)
    t_k = least_threshold(n, T_C, mode, k)
    return _falls_apart(n, T, T_C, mode, k) <= failure and _cannot_rebuild(n, T, k, t_k) <= failure


def _limit(n: int, mode: str) -> Fraction:
    """Return the largest allowed probability that a client has more than c_k colluding neighbours in a single graph."""
    is_malicious(mode)
    return Fraction(1, n * 2 ** (FAILURE + REDRAWS[mode]))


def _falls_apart(n: int, T: int, T_C: int, mode: str, k: int) -> Fraction:
    """Return a bound on the probability that T dropouts, independent of the circle, disconnect the honest survivors.

    They are disconnected only if two disjoint arcs of k/2 clients on the circle consist of dropouts and colluders, of
    which there are T + T_C.  The result is a union bound over the n (n - k + 1) / 2 pairs of arcs.  It is 0 on the
    complete graph, and in the malicious mode: there the server chooses the dropouts, and secrecy rests on t_k alone.
    """
    if is_malicious(mode) or k >= n - 1:
        return Fraction(0)
    return Fraction(n * (n - k + 1) // 2 * math.comb(T + T_C, k), math.comb(n, k))


def _cannot_rebuild(n: int, T: int, k: int, t_k: int) -> Fraction:
    """Return a bound on the probability that some secret cannot be rebuilt after T dropouts, because shares are lost.

    A survivor's self-mask is rebuilt from the survivor's own share and its neighbours' shares.  The key of a dropped
    client is rebuilt from its neighbours' shares alone.
    """
    survivor = (n - T) * tail(n - 1, T, k, k + 1 - t_k)
    dropped = T * tail(n - 1, T - 1, k, k - t_k) if T else Fraction(0)
    return survivor + dropped


def _first(choices: range, holds: Callable[[int], bool]) -> int:
    """Return the index of the first choice for which `holds` is true, or len(choices).

    If `holds` is true for a choice, it must be true for all later choices, because the search is a bisection.
    """
    end = 1
    while end < len(choices) and not holds(choices[end - 1]):
        end *= 2
    return bisect_left(choices, True, lo=end // 2, hi=min(end, len(choices)), key=holds)
