"""Who masks and shares with whom in SecAgg+: a circulant (Harary) graph on a circle that nobody chose.

Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead" (CCS 2020).  The neighbours of a
client depend on U, the degree and the seed, never on who answers.
"""

from collections.abc import Sequence

from dordis.crypto import kdf, prg
from dordis.crypto.shuffle import shuffled
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
    return shuffled(range(n), prg.from_seed(seed, b"dordis/v1/graph"))
