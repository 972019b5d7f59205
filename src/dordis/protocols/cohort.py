"""The parameters of rounds whose list of clients, U, is fixed before the sum begins: this list, the quorum, the graph.

The graph says which clients share masks and secrets.  SecAgg and the plaintext protocol have the same parameters, so
that their sums can be compared.  n is the number of clients in U, q the quorum, T the dropout tolerance, T_C the
largest number of colluding clients.
"""

from collections.abc import Collection, Iterable
from fractions import Fraction
from functools import cached_property
from typing import Any

from dordis.errors import MalformedMessage, ParametersRefused, TooFewClients, TooManyDropouts
from dordis.privacy.skellam_noise import SKELLAM, NoiseLaw
from dordis.privacy.xnoise_components import default_tolerance
from dordis.protocol import ClientId
from dordis.protocols import sparse_graph
from dordis.protocols.limits import MOST_CLIENTS, MOST_DEGREE
from dordis.protocols.parameters import (
    LARGEST_ID,
    WORD,
    Parameters,
    common_part,
    complete,
    extend,
    pack_words,
    unpack_words,
)
from dordis.protocols.sparse_graph import check_neighbourhood, colluding_neighbours
from dordis.protocols.summing import Opening, Roster, SummingState


class CohortParameters(Parameters, frozen=True, dict=True, kw_only=True):
    """The parameters of a round with a fixed list of clients, U.

    `members` are the ids of U as little-endian words of eight bytes.  `quorum` is q, the least number of clients that
    must answer each stage.  `degree` is the number of neighbours of a client on a sparse graph, and 0 on the complete
    graph.  `threshold` is the number of shares from which a secret is rebuilt: t_k on a sparse graph; on the complete
    graph t, which equals `quorum`.
    """

    members: bytes
    quorum: int
    degree: int
    threshold: int

    @cached_property
    def clients(self) -> tuple[ClientId, ...]:
        return tuple(ClientId(i) for i in unpack_words(self.members))

    @cached_property
    def rank(self) -> dict[ClientId, int]:
        """Return the index of each client in sorted U."""
        return {u: i for i, u in enumerate(self.clients)}

    @property
    def cohort(self) -> int:
        return len(self.clients)

    @property
    def quorum_fraction(self) -> Fraction:
        return Fraction(self.quorum, len(self.clients))

    @property
    def is_sparse(self) -> bool:
        return self.degree > 0

    @cached_property
    def neighbourhoods(self) -> dict[ClientId, frozenset[ClientId]]:
        """Return for each client its neighbours, with which it shares masks and secrets, and the client itself."""
        everyone = frozenset(self.clients)
        if self.degree == 0:
            return dict.fromkeys(self.clients, everyone)
        joined = sparse_graph.neighbours(self.clients, self.degree, sparse_graph.seed(self.beacon, self.digest))
        return {u: frozenset((u, *vs)) for u, vs in joined.items()}

    @property
    def colluders_around(self) -> int:
        """Return how many neighbours of an honest client may collude: at most T_C, and fewer on a sparse graph."""
        n, T_C, k = len(self.clients), self.colluders, self.degree
        return min(T_C, colluding_neighbours(n, T_C, self.mode, k)) if k else T_C

    def point(self, client: ClientId) -> int:
        """Return the point at which sharing polynomials are evaluated for the shares that a client receives."""
        return 1 + self.rank[client]

    def pack(self, members: Iterable[ClientId]) -> bytes:
        """Return a subset of U as a bitmap: bit i is set if client i of sorted U is in the subset."""
        bits = sum(1 << self.rank[u] for u in members)
        return bits.to_bytes(-(-len(self.clients) // 8), "little")

    def unpack(self, bitmap: bytes) -> tuple[ClientId, ...]:
        """Return the clients in a bitmap over sorted U; raise MalformedMessage if the bitmap does not fit U."""
        bits, n = int.from_bytes(bitmap, "little"), len(self.clients)
        if len(bitmap) != -(-n // 8) or bits >> n:
            raise MalformedMessage("a set of clients is not a bitmap over the round's clients")
        return tuple(u for i, u in enumerate(self.clients) if bits >> i & 1)

    @property
    def own_sizes(self) -> tuple[tuple[str, int, int], ...]:
        clients = ("clients", len(self.members) // WORD, MOST_CLIENTS)
        return clients, ("neighbours for a client", self.degree, MOST_DEGREE)

    def check_own(self) -> None:
        check_members(self)
        check_thresholds(self)


class CohortOpening(Opening, frozen=True):
    """The first request of a protocol with a fixed list of clients, U."""

    parameters: CohortParameters


class CohortState(SummingState):
    """The state of a client of a protocol with a fixed list of clients, U."""

    parameters: CohortParameters | None = None


def agree_with_cohort(common: Parameters, roster: Roster) -> CohortParameters:
    """Return a round's parameters, unchecked: `common`, the roster's U and quorum, the graph's degree and threshold."""
    n, T, T_C = len(roster.clients), common.tolerance, common.colluders
    solved = sparse_graph.solve(n, T, T_C, common.mode) if roster.sparse else None
    return extend(
        common,
        CohortParameters,
        members=pack_words(sorted(roster.clients)),
        quorum=roster.quorum,
        degree=solved.degree if solved else 0,
        threshold=solved.threshold if solved else roster.quorum,
    )


def agree_on(
    *,
    clients: Collection[int],
    threshold: int,
    quorum: int | None = None,
    degree: int = 0,
    tolerance: int | None = None,
    law: NoiseLaw = SKELLAM,
    **common: Any,
) -> CohortParameters:
    """Return checked parameters of a round in which `clients` are U; `common` are further arguments of `common_part`.

    The default quorum is `threshold`; the default tolerance is that of `xnoise_components.default_tolerance`.  The
    graph has the degree `degree`; with 0 all clients are neighbours.
    """
    n = len(clients)
    T = default_tolerance(n, threshold, sparse=bool(degree)) if tolerance is None else tolerance
    draft = extend(
        common_part(n_min=n - T, n_max=n, **common),
        CohortParameters,
        members=pack_words(sorted(clients)),
        quorum=threshold if quorum is None else quorum,
        degree=degree,
        threshold=threshold,
    )
    return complete(draft, law)


def ensure_enough(
    parameters: CohortParameters, stage: str, clients: Collection[ClientId], liars: Collection[ClientId] = ()
) -> None:
    """Raise unless enough clients answered a stage; `clients` are those that answered.

    Raise TooManyDropouts if more than T clients of U did not answer, and TooFewClients if fewer than a quorum answered.
    The error names the `liars`, clients that provably lied so far.
    """
    dropped, named = len(parameters.clients) - len(clients), frozenset(liars)
    if dropped > parameters.tolerance:
        raise TooManyDropouts(dropped, parameters.tolerance, named)
    if len(clients) < parameters.quorum:
        raise TooFewClients(stage, len(clients), parameters.quorum, named)


def check_members(parameters: CohortParameters) -> None:
    """Raise ParametersRefused unless U is sorted, without repetition, and has n_max members."""
    if len(parameters.members) % WORD or not parameters.members:
        raise ParametersRefused("the clients of a round are ids of eight bytes each, at least one")
    clients = parameters.clients
    if list(clients) != sorted(set(clients)) or clients[-1] > LARGEST_ID:
        raise ParametersRefused("the clients of a round are distinct ids in ascending order, below 2^63")
    if len(clients) != parameters.n_max:
        raise ParametersRefused(f"n_max is the number of clients in U, {len(clients)}, not {parameters.n_max}")


def check_thresholds(parameters: CohortParameters) -> None:
    """Raise ParametersRefused unless 0 <= T_C < q <= n, 0 <= T <= n - q and T_C < n - T, for n clients and quorum q.

    Raise it also if `check_majority` or `check_graph` does.
    """
    n, q, T, T_C = len(parameters.clients), parameters.quorum, parameters.tolerance, parameters.colluders
    if not 1 <= q <= n:
        raise ParametersRefused(f"the quorum {q} must lie in 1..{n}")
    if T_C < 0 or q <= T_C:
        raise ParametersRefused(f"the tolerated colluders T_C = {T_C} must be fewer than the quorum {q}")
    if not 0 <= T <= n - q:
        raise ParametersRefused(f"the dropout tolerance T = {T} must lie in 0..{n - q}, n less the quorum")
    if n - T <= T_C:
        raise ParametersRefused(f"the tolerated colluders T_C = {T_C} must be fewer than n - T = {n - T}")
    check_majority(parameters)
    check_graph(parameters)


def check_majority(parameters: CohortParameters) -> None:
    """In the malicious mode, raise ParametersRefused unless any two quorums share an honest client: 2q > n + T_C."""
    n, q, T_C = len(parameters.clients), parameters.quorum, parameters.colluders
    if parameters.is_malicious and 2 * q <= n + T_C:
        raise ParametersRefused(f"against a malicious server the quorum must exceed (n + T_C) / 2, not be {q}")


def check_graph(parameters: CohortParameters) -> None:
    """Raise ParametersRefused unless a sparse graph has a beacon, and quorum, degree and threshold keep inputs secret.

    On the complete graph (degree 0) raise it unless the share threshold equals the quorum.
    """
    n, k = len(parameters.clients), parameters.degree
    if k == 0 and parameters.threshold != parameters.quorum:
        raise ParametersRefused("on the complete graph the quorum is the threshold of the shares")
    if k:
        check_neighbourhood(
            n, parameters.tolerance, parameters.colluders, parameters.mode, parameters.quorum, k, parameters.threshold
        )
        check_unpredictable(parameters)


def check_unpredictable(parameters: CohortParameters) -> None:
    """Raise ParametersRefused if a sparse graph has no beacon.

    The graph is drawn from the beacon.  A server that chose the graph could give a client only colluding neighbours.
    """
    if len(parameters.beacon) < sparse_graph.BEACON_BYTES:
        raise ParametersRefused(f"a sparse graph needs a beacon of {sparse_graph.BEACON_BYTES} bytes")
