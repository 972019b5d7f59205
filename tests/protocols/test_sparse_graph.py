"""Degree and thresholds of SecAgg+, compared with exact tails and simulations, and a search for successful attacks."""

import hashlib
import hmac
import math
import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, permutations, product

import numpy as np
import pytest
from Crypto.Cipher import AES

from dordis.errors import InputError, ParametersRefused
from dordis.protocols import sparse_graph
from dordis.protocols.sparse_graph import check_neighbourhood, solve, tail

SEED = bytes(range(32))


def hkdf(secret: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 by its text, without salt."""
    key, block, out = hmac.digest(bytes(32), secret, "sha256"), b"", b""
    for i in range(1, 1 + -(-length // 32)):
        block = hmac.digest(key, block + info + bytes([i]), "sha256")
        out += block
    return out[:length]


def shuffled(n: int, seed: bytes) -> list[int]:
    """Fisher-Yates on words of a keystream, with another library's AES."""
    derived = hkdf(seed, b"dordis/v1/graph", 28)
    cipher = AES.new(derived[:16], AES.MODE_CTR, nonce=derived[16:], initial_value=2)
    order = list(range(n))
    for i in reversed(range(1, n)):
        word = 2**64
        while word >= 2**64 // (i + 1) * (i + 1):
            word = int.from_bytes(cipher.encrypt(bytes(8)), "little")
        j = word % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def reached(edges: dict, start: int) -> set[int]:
    seen, todo = {start}, [start]
    while todo:
        fresh = set(edges[todo.pop()]) - seen
        seen |= fresh
        todo += fresh
    return seen


@pytest.mark.parametrize(("n", "k"), [(4, 2), (5, 2), (6, 4), (14, 8), (100, 24), (1000, 64)])
def test_each_client_has_k_neighbours_who_know_it_and_all_are_connected(n: int, k: int) -> None:
    clients = [7 * u + 3 for u in range(n)]
    edges = sparse_graph.neighbours(clients, k, SEED)
    assert set(edges) == set(clients)
    for u, near in edges.items():
        assert len(near) == k
        assert list(near) == sorted(set(near) - {u})
        assert all(u in edges[v] for v in near)
    assert reached(edges, clients[0]) == set(clients)


def test_neighbours_are_the_next_on_the_circle() -> None:
    n, k = 11, 6
    circle, edges = sparse_graph.permutation(n, SEED), sparse_graph.neighbours(range(n), k, SEED)
    for i, u in enumerate(circle):
        assert set(edges[u]) == {circle[(i + step) % n] for step in (-3, -2, -1, 1, 2, 3)}


@pytest.mark.parametrize(("n", "k"), [(1, 0), (2, 1), (3, 2), (4, 3), (6, 5), (6, 9)])
def test_from_n_minus_1_on_everybody_is_joined(n: int, k: int) -> None:
    assert sparse_graph.neighbours(range(n), k, SEED) == {u: tuple(v for v in range(n) if v != u) for u in range(n)}


def test_the_order_of_the_clients_does_not_matter_and_the_seed_does() -> None:
    edges = sparse_graph.neighbours(range(30), 4, SEED)
    assert sparse_graph.neighbours(range(29, -1, -1), 4, SEED) == edges
    assert sparse_graph.neighbours(range(30), 4, SEED[::-1]) != edges


@pytest.mark.parametrize("n", [1, 2, 5, 64, 1000, 5000])
def test_the_circle_is_that_of_another_implementation(n: int) -> None:
    assert sparse_graph.permutation(n, SEED) == shuffled(n, SEED)


def test_the_circle_never_changes_within_a_protocol_version() -> None:
    assert sparse_graph.permutation(10, SEED) == [5, 9, 3, 1, 0, 8, 6, 4, 2, 7]
    assert sparse_graph.seed(b"beacon", SEED) == hkdf(b"beacon" + SEED, b"dordis/v1/graph-seed", 32)
    digest = hashlib.sha256(
        repr(sparse_graph.permutation(10_000, sparse_graph.seed(b"beacon", SEED))).encode()
    ).hexdigest()
    assert digest[:16] == "2c789f29025ef401"


def test_every_circle_is_equally_likely() -> None:
    draws = 4800
    seen = Counter(tuple(sparse_graph.permutation(4, i.to_bytes(32, "big"))) for i in range(draws))
    assert set(seen) == set(permutations(range(4)))
    statistic = sum((count - draws / 24) ** 2 / (draws / 24) for count in seen.values())
    assert 8 < statistic < 47  # chi-square with 23 degrees of freedom: two tails of about 0.2 %


def test_beacon_and_parameters_both_decide_the_seed() -> None:
    seeds = {sparse_graph.seed(b, bytes([p]) * 32) for b in (b"", b"a", b"ab", b"\0", b"\1") for p in (0, 1)}
    assert len(seeds) == 10
    assert {len(seed) for seed in seeds} == {32}
    with pytest.raises(InputError):
        sparse_graph.seed(b"beacon", b"short")


@pytest.mark.parametrize(("n", "k"), [(10, 3), (10, 7), (10, 1), (10, 0), (10, -2), (0, 2), (2, 0)])
def test_what_is_no_degree_is_refused(n: int, k: int) -> None:
    with pytest.raises(ParametersRefused):
        sparse_graph.neighbours(range(n), k, SEED)


def test_a_client_named_twice_is_refused() -> None:
    with pytest.raises(ParametersRefused):
        sparse_graph.neighbours([1, 2, 3, 3, 4], 2, SEED)


@pytest.mark.parametrize("t_k", [-1, 0, 6])
def test_a_threshold_beyond_the_neighbourhood_is_refused(t_k: int) -> None:
    sparse_graph.check_share_threshold(10, 4, 5)
    with pytest.raises(ParametersRefused):
        sparse_graph.check_share_threshold(10, 4, t_k)


MODES = ("semi-honest", "malicious")


# The solver, against what the rules say, one degree after the other.


def more_than(most: int, population: int, marked: int, drawn: int) -> Fraction:
    """P[more than `most` marked among `drawn`] from the definition."""
    ways = (
        math.comb(marked, x) * math.comb(population - marked, drawn - x) for x in range(max(0, most + 1), drawn + 1)
    )
    return Fraction(sum(ways), math.comb(population, drawn))


def rules(n: int, T: int, T_C: int, mode: str, k: int, bits: int, redraws: int) -> tuple[bool, int]:
    """Return whether degree k < n - 1 will do, and the least t_k, as PROTOCOL says it."""
    goal, malicious = Fraction(1, 2**bits), mode == "malicious"
    limit = goal / n / (2**redraws if malicious else 1)
    c = next(c for c in range(k + 1) if more_than(c, n - 1, T_C, k) <= limit)
    t = k // 2 + c + 2 if malicious else c + 1
    lost = (n - T) * more_than(k + 1 - t, n - 1, T, k) + (T * more_than(k - t, n - 1, T - 1, k) if T else 0)
    runs = 0 if malicious else Fraction(n * (n - k + 1), 2) * math.perm(T + T_C, k) / math.perm(n, k)
    return lost <= goal and runs <= goal, t


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", [1, 3, 6, 40])
def test_the_degree_is_the_least_that_keeps_the_rules(mode: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    redraws = {"semi-honest": 0, "malicious": 4}
    monkeypatch.setattr(sparse_graph, "FAILURE", bits)
    monkeypatch.setattr(sparse_graph, "REDRAWS", redraws)
    sparse = 0
    for n, T_C in product((5, 8, 13, 24, 41, 60), (0, 1, 2, 5)):
        q = (n + T_C) // 2 + 1 if mode == "malicious" else T_C + 1
        for T in range(min(n - q, n - T_C - 1) + 1):
            result = solve(n, T, T_C, mode)
            fits = ((k, *rules(n, T, T_C, mode, k, bits, redraws[mode])) for k in range(2, n - 1, 2))
            expected = next(((k, t) for k, fine, t in fits if fine), (n - 1, q))
            assert (result.degree, result.threshold, result.quorum) == (*expected, q), (n, T, T_C)
            assert result.complete == (result.degree == n - 1)
            sparse += not result.complete
    assert sparse > 20


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [100, 1000, 10_000])
def test_large_rounds_are_solved_and_two_neighbours_fewer_are_too_few(n: int, mode: str) -> None:
    result = solve(n, n // 10, 1, mode)
    redraws = sparse_graph.REDRAWS["malicious"]
    assert rules(n, n // 10, 1, mode, result.degree, 40, redraws) == (True, result.threshold)
    assert not rules(n, n // 10, 1, mode, result.degree - 2, 40, redraws)[0]
    assert max(result.p_security, result.p_correctness) <= -40


@pytest.mark.parametrize(("n", "T", "k", "t_k", "q"), [(128, 12, 28, 17, 65), (1000, 100, 64, 35, 501)])
def test_known_degrees(n: int, T: int, k: int, t_k: int, q: int) -> None:
    result = solve(n, T, 1, "malicious")
    assert (result.degree, result.threshold, result.quorum, result.colluders) == (k, t_k, q, 1)


def test_small_rounds_take_the_complete_graph_and_say_so() -> None:
    result = solve(10, 4, 1, "malicious")
    assert (result.complete, result.degree, result.threshold, result.quorum) == (True, 9, 6, 6)
    assert result.p_security == result.p_correctness == -math.inf


# The probabilities, by enumeration and by simulation.


@pytest.mark.parametrize(("population", "marked", "drawn"), [(6, 2, 3), (7, 7, 2), (8, 3, 0), (8, 5, 6), (9, 0, 4)])
def test_tails_are_those_of_counting(population: int, marked: int, drawn: int) -> None:
    counts = [sum(x < marked for x in draw) for draw in combinations(range(population), drawn)]
    for most in range(-1, drawn + 1):
        exact = Fraction(sum(count > most for count in counts), len(counts))
        assert tail(population, marked, drawn, most) == exact
        if exact:
            assert sparse_graph.log2(exact) == pytest.approx(math.log2(exact))


def circulant(n: int, k: int) -> list[int]:
    """Return each client's neighbours on the circle 0..n-1, as a bitmap."""
    steps = [*range(1, k // 2 + 1), *range(-k // 2, 0)]
    return [sum(1 << (u + step) % n for step in steps) for u in range(n)]


def parts(alive: int, near: list[int]) -> list[int]:
    """Return the connected parts of what is left of a graph."""
    result = []
    while alive:
        part, grown = 0, alive & -alive
        while part != grown:
            part = grown
            grown |= alive & sum_bits(near, part)
        result.append(part)
        alive &= ~part
    return result


def sum_bits(near: list[int], of: int) -> int:
    total = 0
    for u, others in enumerate(near):
        if of >> u & 1:
            total |= others
    return total


def bitmaps(n: int, most: int, least: int = 0) -> Iterator[int]:
    for size in range(least, most + 1):
        yield from (sum(1 << u for u in chosen) for chosen in combinations(range(n), size))


@pytest.mark.parametrize(("n", "k"), [(8, 2), (10, 2), (10, 4), (13, 4), (14, 6)])
def test_honest_survivors_fall_apart_no_more_often_than_the_bound(n: int, k: int) -> None:
    near = circulant(n, k)
    for missing in range(n - 1):
        cases = [len(parts(2**n - 1 & ~lost, near)) > 1 for lost in bitmaps(n, missing, missing)]
        exact = Fraction(sum(cases), len(cases))
        bounds = [sparse_graph._falls_apart(n, missing - T_C, T_C, "semi-honest", k) for T_C in (0, min(1, missing))]
        assert bounds[0] == bounds[1] >= exact
        assert (exact == 0) == (missing < k) or n - missing < 2


def test_neighbourhoods_of_real_graphs_lose_shares_as_often_as_computed() -> None:
    n, T, k, t_k, draws = 40, 10, 8, 6, 3000
    generator, short, rounds = random.Random(5), 0, 0
    for draw in range(draws):
        edges = sparse_graph.neighbours(range(n), k, draw.to_bytes(32, "big"))
        dropped = set(generator.sample(range(n), T))
        failures = sum(len(set(edges[u]) - dropped) + (u not in dropped) < t_k for u in range(n))
        short += failures
        rounds += failures > 0
    bound = float(sparse_graph._cannot_rebuild(n, T, k, t_k))
    assert short / draws == pytest.approx(bound, rel=0.05)  # the expected number is exact, hence bounds the probability
    assert rounds / draws < bound


# What clients refuse.


@pytest.mark.parametrize(
    ("setting", "choice"),
    [
        ((1000, 100, 1, "malicious"), (501, 64, 35)),
        ((1000, 100, 1, "malicious"), (600, 64, 40)),
        ((1000, 100, 1, "semi-honest"), (2, 18, 2)),
        ((10, 2, 1, "malicious"), (6, 9, 6)),
        ((10, 2, 1, "semi-honest"), (2, 9, 2)),
    ],
)
def test_secret_choices_are_accepted(setting: tuple[int, int, int, str], choice: tuple[int, int, int]) -> None:
    check_neighbourhood(*setting, *choice)


@pytest.mark.parametrize(
    ("setting", "choice", "reason"),
    [
        ((1000, 100, 1, "malicious"), (500, 64, 35), "quorum"),
        ((1000, 100, 1, "malicious"), (901, 64, 35), "tolerance"),
        ((1000, 100, 1, "malicious"), (501, 64, 34), "share threshold"),
        ((1000, 100, 1, "malicious"), (501, 64, 66), "share threshold"),
        ((1000, 100, 1, "malicious"), (501, 63, 40), "degree"),
        ((1000, 100, 1, "malicious"), (501, 0, 1), "degree"),
        ((1000, 100, 1, "malicious"), (501, 1000, 501), "degree"),
        ((1000, 100, 1, "semi-honest"), (1, 18, 2), "quorum"),
        ((1000, 100, 1, "semi-honest"), (2, 18, 1), "share threshold"),
        ((1000, 100, 1, "semi-honest"), (2, 16, 2), "not be connected"),
        ((1000, -1, 1, "malicious"), (501, 64, 35), "colluders"),
        ((1000, 100, -1, "malicious"), (501, 64, 35), "colluders"),
        ((1000, 100, 900, "semi-honest"), (901, 64, 35), "colluders"),
        ((1000, 100, 1, "covert"), (501, 64, 35), "mode"),
        ((10, 2, 1, "malicious"), (6, 9, 5), "share threshold"),
    ],
)
def test_choices_that_endanger_secrecy_are_refused(
    setting: tuple[int, int, int, str], choice: tuple[int, int, int], reason: str
) -> None:
    with pytest.raises(ParametersRefused, match=reason):
        check_neighbourhood(*setting, *choice)


def test_what_cannot_be_solved_is_refused() -> None:
    for setting in ((100, 50, 1, "malicious"), (100, 99, 1, "semi-honest"), (0, 0, 0, "malicious"), (9, 1, 1, "other")):
        with pytest.raises(ParametersRefused):
            solve(*setting)


# The search for any way to cheat in the malicious mode.


Sets = np.ndarray
"""Sets of clients as bitmaps, one for each case that is tried."""


def isolated(
    n: int, k: int, t_k: int, q: int, colluders: int, dropped: Sets, S: Sets, checked: bool = True
) -> np.ndarray:
    """Tell for each case whether the server gets the sum over S: some, not all, of the honest members of U3.

    The server names one U3 (its quorum allows no second) and shows each honest client a U2 of its own, of which the
    client's neighbourhood must count t_k with itself.  `checked`: a client that was not shown some neighbour in U3
    refuses and stays silent; it has uploaded all the same.  At least q sign.  Dropped clients and S determine the
    server's best views, so that trying all of these covers every choice of views:

    - Colluders may be taken to be in U3: outside they give the server nothing more, and count as dropped.
    - Of a client outside U3 nobody honest discloses b, so that its upload is of no use; of one in U3 nobody discloses
      s.  A combination of uploads is free of masks only if clients with a mutual unknown mask have equal weights: what
      the server can compute is made of sums over sets.
    - Given S, each entry of each view either helps the server or is forbidden.  Within S, masks that both sides use
      cancel and those that one side uses do not: show both, so that neither has a reason to refuse and shares flow.
      To S, colluders: their masks are known; show them.  To S, the rest of U3: their masks would stay; hide them.  To
      S, a dropped client: its masks can be removed if its s is rebuilt, and showing it to more clients brings more
      shares; show it to all if then t_k shares are there, else to nobody in S.  To the rest: show everything; nobody
      there refuses, it brings shares, and masks there do not matter.
    """
    near, count = circulant(n, k), np.array([bits.bit_count() for bits in range(2**n)], np.int8)
    honest = [u for u in range(n) if not colluders >> u & 1]
    u3 = sum(1 << u for u in honest) & ~dropped
    silent, opened = np.zeros_like(S), np.zeros_like(S)
    for u in honest if checked else ():
        silent |= np.where(near[u] & u3 & ~S, S & 1 << u, 0)
    answers = u3 & ~silent | colluders
    for u in honest:
        opened |= np.where(count[near[u] & answers] >= t_k, dropped & 1 << u, 0)
    leak = (S > 0) & (u3 != S) & (count[answers] >= q)
    for u in honest:
        uploads = 1 + count[near[u] & (S | colluders | opened)] >= t_k
        rebuilt = count[(near[u] | 1 << u) & answers] >= t_k
        leak &= uploads & rebuilt | (S >> u & 1 == 0)
    return leak


def assignments(n: int, T: int, colluders: int) -> tuple[Sets, Sets]:
    """Return every choice of dropped clients, at most T, and of a set S among the other honest ones.

    Without colluders the circle may be rotated until client 0 is in S.
    """
    dropped, S = np.zeros(1, np.int32), np.full(1, 0 if colluders else 1, np.int32)
    for u in range(0 if colluders else 1, n):
        if not colluders >> u & 1:
            dropped, S = np.concatenate([dropped, dropped, dropped | 1 << u]), np.concatenate([S, S | 1 << u, S])
            few = np.bitwise_count(dropped) <= T
            dropped, S = dropped[few], S[few]
    return dropped, S


def coalitions(n: int) -> list[int]:
    """Return up to two colluders, up to rotation and reflection of the circle."""
    return [0, 1, *(1 | 1 << d for d in range(1, n // 2 + 1))]


def adjacent(n: int, k: int, colluders: int) -> int:
    """Return c_k: the most colluders that an honest client has as neighbours."""
    near = circulant(n, k)
    return max((near[u] & colluders).bit_count() for u in range(n) if not colluders >> u & 1)


def leaks(n: int, k: int, lower: int, checked: bool = True) -> tuple[int, list[str]]:
    """Try every coalition with t_k = k/2 + c_k + 2 - lower: return how many cases there are, and the leaks."""
    cases, result = 0, []
    for colluders in coalitions(n):
        t_k = k // 2 + adjacent(n, k, colluders) + 2 - lower
        q = sparse_graph.least_quorum(n, colluders.bit_count(), "malicious")
        dropped, S = assignments(n, n - q, colluders)
        leak = isolated(n, k, t_k, q, colluders, dropped, S, checked)
        cases += S.size
        result += [
            f"n={n} k={k} t_k={t_k} q={q} colluders={members(colluders)} dropped={members(D)} S={members(S)}"
            for D, S in zip(dropped[leak].tolist(), S[leak].tolist(), strict=True)
        ]
    return cases, result


def members(bits: int) -> list[int]:
    return [u for u in range(bits.bit_length()) if bits >> u & 1]


SIZES = [(n, k) for k in (2, 4, 6, 8) for n in range(k + 2, 15)]
LARGER = [pytest.param(n, k, marks=pytest.mark.slow) for n, k in SIZES if n >= 13]
ALL = [pair for pair in SIZES if pair[0] < 13] + LARGER


@pytest.mark.parametrize(("n", "k"), ALL)
def test_no_choice_of_views_and_dropouts_isolates_anybody(n: int, k: int) -> None:
    cases, result = leaks(n, k, lower=0)
    assert cases > 0
    assert not result, result[0]


@pytest.mark.parametrize(("n", "k"), [(5, 2), (9, 4), pytest.param(13, 6, marks=pytest.mark.slow)])
def test_a_threshold_lower_by_one_leaks(n: int, k: int) -> None:
    """The least n at which a quorum can be met while two gaps of k/2 leave an arc of k/2 + 1 clients."""
    _, result = leaks(n, k, lower=1)
    print(f"{len(result)} leaks, for example {result[:1]}")  # noqa: T201
    assert result


@pytest.mark.parametrize(("n", "k"), [(6, 2), (10, 4), pytest.param(14, 6, marks=pytest.mark.slow)])
def test_a_threshold_lower_by_one_leaks_to_two_colluders_who_have_no_neighbour_in_common(n: int, k: int) -> None:
    _, result = leaks(n, k, lower=1)
    together = [leak for leak in result if f"t_k={k // 2 + 2} " in leak and "colluders=[0, " in leak]
    print(f"{len(together)} leaks, for example {together[:1]}")  # noqa: T201
    assert together


def run_of(first: int, length: int) -> int:
    return (1 << length) - 1 << first


@pytest.mark.parametrize("k", [2, 4, 6, 8, 10])
def test_two_gaps_isolate_an_arc_unless_the_threshold_is_the_rule(k: int) -> None:
    """A gap of k/2, one client, another gap, and the arc: any degree, also where n = 14 is too small for the quorum."""
    n, gap = 2 * k + 1, k // 2
    dropped, S = (np.array([bits]) for bits in (run_of(0, gap) | run_of(gap + 1, gap), run_of(k + 1, k)))
    q = sparse_graph.least_quorum(n, 0, "malicious")
    assert n - k >= q
    assert isolated(n, k, gap + 1, q, 0, dropped, S).all()
    assert not isolated(n, k, gap + 2, q, 0, dropped, S).any()


@pytest.mark.parametrize("k", [4, 6, 8])
def test_clients_must_refuse_a_u3_with_neighbours_that_they_were_not_shown(k: int) -> None:
    """Otherwise it is enough to drop one client at each end of an arc and to hide from the arc what lies beyond."""
    n, t_k = 2 * k + 1, k // 2 + 2
    dropped, S = np.array([1 | 1 << k + 1]), np.array([run_of(1, k)])
    q = sparse_graph.least_quorum(n, 0, "malicious")
    assert isolated(n, k, t_k, q, 0, dropped, S, checked=False).all()
    assert not isolated(n, k, t_k, q, 0, dropped, S).any()


# The reasons given above, against all views of small rounds, one by one.


def accepted(near: int, least: int) -> list[int]:
    """Return every U2 that a client accepts, as far as it concerns its neighbours: `least` or more of them."""
    return [sum(1 << v for v in subset) for size in range(least, 9) for subset in combinations(members(near), size)]


def leaks_in_some_view(n: int, k: int, t_k: int, q: int, colluders: int, dropped: int, checked: bool) -> bool:
    """Try all views of all honest members of U3, and tell by linear algebra what the server can compute."""
    near, honest = circulant(n, k), members((1 << n) - 1 & ~colluders)
    u3 = [u for u in honest if not dropped >> u & 1]
    grid = np.array(list(product(*(accepted(near[u], t_k - 1) for u in u3))), np.int64)
    if not grid.size:
        return False
    shown = {(u, v): grid[:, i] >> v & 1 for i, u in enumerate(u3) for v in members(near[u])}
    speaks = {u: (near[u] & ~dropped & ~grid[:, i] == 0) | (not checked) for i, u in enumerate(u3)}
    known = {}  # b of members of U3, s of the others
    for u in honest:
        shares = np.full(len(grid), (near[u] & colluders).bit_count()) + (speaks[u] if u in u3 else 0)
        known[u] = sum((shown[w, u] * speaks[w] for w in u3 if near[u] >> w & 1), shares) >= t_k
    masks = [np.outer(~known[u], np.eye(len(u3))[i]) for i, u in enumerate(u3)]
    for u, v in combinations(honest, 2):
        if near[u] >> v & 1 and (u in u3 or v in u3):
            row, secret = np.zeros(grid.shape), np.ones(len(grid), bool)
            for me, peer, sign in ((u, v, 1), (v, u, -1)):
                if me in u3:
                    row[:, u3.index(me)] = sign * shown[me, peer]
                else:
                    secret &= ~known[me]
            masks.append(row * secret[:, None])
    matrix = np.stack(masks, axis=1)
    free = len(u3) - np.linalg.matrix_rank(matrix)
    leak = (free > 1) | ((free == 1) & matrix.sum(axis=2).any(axis=1))
    return bool((leak & (sum(speaks.values()) + colluders.bit_count() >= q)).any())


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(
    ("n", "k", "t_k", "least_dropped"),
    [(5, 2, 2, 0), (5, 2, 3, 0), (6, 2, 3, 0), (6, 2, 2, 2), (6, 4, 4, 1), (6, 4, 5, 0)]
    + [pytest.param(*case, marks=pytest.mark.slow) for case in [(6, 4, 3, 2), (7, 4, 4, 2)]],
)
def test_the_search_agrees_with_trying_all_views(n: int, k: int, t_k: int, least_dropped: int, checked: bool) -> None:
    for colluders in coalitions(n):
        q = sparse_graph.least_quorum(n, colluders.bit_count(), "malicious")
        dropped, S = assignments(n, n - q, colluders)
        leaking = {*dropped[isolated(n, k, t_k, q, colluders, dropped, S, checked)].tolist()}
        if not colluders:  # the search keeps client 0 in S
            leaking = {turned(bits, by, n) for bits in leaking for by in range(n)}
        for bits in bitmaps(n, n - q, least_dropped):
            if not bits & colluders:
                result = leaks_in_some_view(n, k, t_k, q, colluders, bits, checked)
                assert result == (bits in leaking), (members(colluders), members(bits))


def turned(bits: int, by: int, n: int) -> int:
    return (bits << by | bits >> n - by) & (1 << n) - 1
