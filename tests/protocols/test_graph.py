"""The graph of SecAgg+: regular, symmetric, connected, and a function of beacon and parameters that nobody can bend."""

import hashlib
import hmac
from collections import Counter
from itertools import permutations

import pytest
from Crypto.Cipher import AES

from dordis.errors import InputError, ParametersRefused
from dordis.protocols import graph

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
    edges = graph.neighbours(clients, k, SEED)
    assert set(edges) == set(clients)
    for u, near in edges.items():
        assert len(near) == k
        assert list(near) == sorted(set(near) - {u})
        assert all(u in edges[v] for v in near)
    assert reached(edges, clients[0]) == set(clients)


def test_neighbours_are_the_next_on_the_circle() -> None:
    n, k = 11, 6
    circle, edges = graph.permutation(n, SEED), graph.neighbours(range(n), k, SEED)
    for i, u in enumerate(circle):
        assert set(edges[u]) == {circle[(i + step) % n] for step in (-3, -2, -1, 1, 2, 3)}


@pytest.mark.parametrize(("n", "k"), [(1, 0), (2, 1), (3, 2), (4, 3), (6, 5), (6, 9)])
def test_from_n_minus_1_on_everybody_is_joined(n: int, k: int) -> None:
    assert graph.neighbours(range(n), k, SEED) == {u: tuple(v for v in range(n) if v != u) for u in range(n)}


def test_the_order_of_the_clients_does_not_matter_and_the_seed_does() -> None:
    edges = graph.neighbours(range(30), 4, SEED)
    assert graph.neighbours(range(29, -1, -1), 4, SEED) == edges
    assert graph.neighbours(range(30), 4, SEED[::-1]) != edges


@pytest.mark.parametrize("n", [1, 2, 5, 64, 1000, 5000])
def test_the_circle_is_that_of_another_implementation(n: int) -> None:
    assert graph.permutation(n, SEED) == shuffled(n, SEED)


def test_the_circle_never_changes_within_a_protocol_version() -> None:
    assert graph.permutation(10, SEED) == [5, 9, 3, 1, 0, 8, 6, 4, 2, 7]
    assert graph.seed(b"beacon", SEED) == hkdf(b"beacon" + SEED, b"dordis/v1/graph-seed", 32)
    digest = hashlib.sha256(repr(graph.permutation(10_000, graph.seed(b"beacon", SEED))).encode()).hexdigest()
    assert digest[:16] == "2c789f29025ef401"


def test_every_circle_is_equally_likely() -> None:
    draws = 4800
    seen = Counter(tuple(graph.permutation(4, i.to_bytes(32, "big"))) for i in range(draws))
    assert set(seen) == set(permutations(range(4)))
    statistic = sum((count - draws / 24) ** 2 / (draws / 24) for count in seen.values())
    assert 8 < statistic < 47  # chi-square with 23 degrees of freedom: two tails of about 0.2 %


def test_beacon_and_parameters_both_decide_the_seed() -> None:
    seeds = {graph.seed(b, bytes([p]) * 32) for b in (b"", b"a", b"ab", b"\0", b"\1") for p in (0, 1)}
    assert len(seeds) == 10
    assert {len(seed) for seed in seeds} == {32}
    with pytest.raises(InputError):
        graph.seed(b"beacon", b"short")


@pytest.mark.parametrize(("n", "k"), [(10, 3), (10, 7), (10, 1), (10, 0), (10, -2), (0, 2), (2, 0)])
def test_what_is_no_degree_is_refused(n: int, k: int) -> None:
    with pytest.raises(ParametersRefused):
        graph.neighbours(range(n), k, SEED)


def test_a_client_named_twice_is_refused() -> None:
    with pytest.raises(ParametersRefused):
        graph.neighbours([1, 2, 3, 3, 4], 2, SEED)


@pytest.mark.parametrize("t_k", [-1, 0, 6])
def test_a_threshold_beyond_the_neighbourhood_is_refused(t_k: int) -> None:
    graph.check_share_threshold(10, 4, 5)
    with pytest.raises(ParametersRefused):
        graph.check_share_threshold(10, 4, t_k)
