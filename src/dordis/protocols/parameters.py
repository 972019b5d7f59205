"""What a round is agreed on: everything that is hashed, and the rules it must keep.

The server checks the rules when it configures a round, every client checks them again before it sends anything, and
the hash goes into every derivation, commitment and ciphertext: two clients with different parameters cannot
understand each other.
"""

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable
from fractions import Fraction
from functools import cached_property, partial
from typing import Annotated, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from dordis import wire
from dordis.errors import MalformedMessage, ParametersRefused
from dordis.privacy.cell_table import places
from dordis.privacy.encoding import NEAREST, STOCHASTIC
from dordis.privacy.noise import SKELLAM, NoiseLaw
from dordis.privacy.requantising import BITS as DELIVERED
from dordis.privacy.skellam import check_buckets
from dordis.privacy.xnoise import Due, NoisePlan, Scheme, context, default_fraction, default_tolerance, fraction_of
from dordis.protocol import ClientId, Message
from dordis.protocols import graph, limits
from dordis.protocols.escrow import Escrow
from dordis.protocols.limits import check_ceilings, check_components, check_places
from dordis.protocols.neighbourhood import check_neighbourhood, colluding_neighbours

SEMI_HONEST = "semi-honest"
MALICIOUS = "malicious"
RUN_BYTES, INDEX_BYTES = 32, 8
FOLDING = "random signs, modulo k"
"""The one rule by which updates are folded."""
LARGEST_ID, _WORD = 2**63 - 1, 8
Known = TypeVar("Known")

Variances = Annotated[dict[int, str], Meta(max_length=limits.MOST_CHUNKS)]
"""A map of more chunks than there can be is not even read."""


class Projection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an update of `dim` coordinates is folded into fewer before it is summed, and how these are rounded and sent.

    The signs follow from the seed of the rotation, under a label of their own.
    """

    dim: int
    buckets: int
    rounding: str = NEAREST
    delivered: int = DELIVERED
    """Bits of a coordinate of the sum as it is delivered and used; 0: the sum itself."""
    rule: str = FOLDING


class Encoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How updates become ring vectors; the protocol only carries it, so that all clients use the same.

    `mechanism` is its name, and `noise` how much noise it brings, in its own words; left out where it brings none.
    """

    mechanism: str = "none"
    clip: float = 0.0
    sensitivity: int = 0
    scale: float = 1.0
    block: int = 1
    rotation: bytes = b""
    bit: int = 0
    """Scale of the clipping bit, which is then the last chunk; 0 if there is none."""
    noise: str | UnsetType = UNSET
    projection: Projection | UnsetType = UNSET
    """Left out where updates are summed at full length."""


class Parameters(Message, frozen=True, dict=True):
    """The parameters of one round; `members` and `ends` are little-endian words of eight bytes.

    `round` is the run id followed by the round's index; `quorum` is the least number of clients at any stage, q, and
    `threshold` the shares that rebuild a secret, t or t_k: on the complete graph, of degree 0, they are the same;
    `ends` are the coordinates at which the chunks end; `variances` holds sigma*^2 of each chunk as a fraction;
    `tables` is the hash of the noise tables.
    """

    mode: str
    round: bytes
    members: bytes
    quorum: int
    degree: int
    threshold: int
    tolerance: int
    colluders: int
    bits: int
    ends: bytes
    scheme: str
    fraction: int
    reserve: int
    variances: Variances
    tables: bytes
    encoding: Encoding = Encoding()
    model: bytes = b""
    beacon: bytes = b""

    @cached_property
    def digest(self) -> bytes:
        """Return the parameter hash; the protocol version is in it."""
        return hashlib.sha256(b"dordis/v1/parameters" + wire.encode(self)).digest()

    @cached_property
    def clients(self) -> tuple[ClientId, ...]:
        """Return U, sorted."""
        return tuple(ClientId(i) for i in _unpack(self.members))

    @cached_property
    def rank(self) -> dict[ClientId, int]:
        """Return the place of each client in U."""
        return {u: i for i, u in enumerate(self.clients)}

    @property
    def run(self) -> bytes:
        """Return the run id."""
        return self.round[:RUN_BYTES]

    @property
    def index(self) -> int:
        """Return the round's index in its run."""
        return int.from_bytes(self.round[RUN_BYTES:], "big")

    @property
    def is_malicious(self) -> bool:
        """Tell whether the server is taken to be malicious: then everything that matters is signed."""
        return self.mode == MALICIOUS

    @cached_property
    def neighbourhoods(self) -> dict[ClientId, frozenset[ClientId]]:
        """Return for each client those who share masks and secrets with it, and itself."""
        everyone = frozenset(self.clients)
        if self.degree == 0:
            return dict.fromkeys(self.clients, everyone)
        joined = graph.neighbours(self.clients, self.degree, graph.seed(self.beacon, self.digest))
        return {u: frozenset((u, *vs)) for u, vs in joined.items()}

    @property
    def colluders_around(self) -> int:
        """Return how many colluders an honest client may share secrets with: T_C, on SecAgg+ at most c_k."""
        n, T_C, k = len(self.clients), self.colluders, self.degree
        return min(T_C, colluding_neighbours(n, T_C, self.mode, k)) if k else T_C

    def point(self, client: ClientId) -> int:
        """Return the client's evaluation point for secret sharing."""
        return 1 + self.rank[client]

    @cached_property
    def chunks(self) -> tuple[slice, ...]:
        """Return the coordinates of each chunk."""
        ends = _unpack(self.ends)
        return tuple(slice(start, end) for start, end in zip((0, *ends), ends, strict=False))

    @property
    def dim(self) -> int:
        """Return the length of the whole vector."""
        return _unpack(self.ends)[-1]

    @cached_property
    def plans(self) -> tuple[NoisePlan, ...]:
        """Return the noise plan of each chunk."""
        plans = {
            text: NoisePlan(
                Scheme(self.scheme),
                len(self.clients),
                self.tolerance,
                self.colluders,
                fraction_of(text),
                self.fraction,
                self.reserve,
            )
            for text in set(self.variances.values())
        }
        return tuple(plans[self.variances[chunk]] for chunk in range(len(self.chunks)))

    def escrow(self, chunk: int) -> Escrow:
        """Return the escrow of a chunk: the seeds of its noise, and the rule that releases those that are due."""
        plan = self.plans[chunk]
        return Escrow(len(plan.base), len(plan.removable), partial(self.due, chunk))

    def due(self, chunk: int, survivors: Collection[ClientId]) -> Due:
        """Return the removable components that each member of U3 discloses."""
        return self.plans[chunk].due(survivors, context(self.round, chunk, self.digest))

    def once(self, key: Hashable, compute: Callable[[], Known]) -> Known:
        """Return what a pure function gives, computed once for this object; only ideal clients share an object."""
        known: dict[Hashable, Known] = self.__dict__.setdefault("_known", {})
        if key not in known:
            known[key] = compute()
        return known[key]

    def pack(self, members: Iterable[ClientId]) -> bytes:
        """Write a subset of U as a bitmap over sorted U."""
        bits = sum(1 << self.rank[u] for u in members)
        return bits.to_bytes(-(-len(self.clients) // 8), "little")

    def unpack(self, bitmap: bytes) -> tuple[ClientId, ...]:
        """Read a subset of U, sorted, from a bitmap of just the right length."""
        bits, n = int.from_bytes(bitmap, "little"), len(self.clients)
        if len(bitmap) != -(-n // 8) or bits >> n:
            raise MalformedMessage("a set of clients is not a bitmap over the round's clients")
        return tuple(u for i, u in enumerate(self.clients) if bits >> i & 1)


def agree_on(
    *,
    run: bytes,
    index: int,
    clients: Collection[int],
    threshold: int,
    bits: int,
    ends: Collection[int],
    quorum: int | None = None,
    degree: int = 0,
    tolerance: int | None = None,
    colluders: int = 1,
    scheme: Scheme | None = None,
    variances: Collection[Fraction | int] | None = None,
    fraction: int | None = None,
    reserve: int = 0,
    mode: str = SEMI_HONEST,
    encoding: Encoding | None = None,
    model: bytes = b"",
    beacon: bytes = b"",
    law: NoiseLaw = SKELLAM,
) -> Parameters:
    """Write down and check the parameters of a round; what is left out takes its default.

    The default tolerance is `xnoise.default_tolerance`, by whether there is a `degree`.
    Noise is divided by the scheme `single` where variances are given.
    """
    n, chunks = len(clients), len(ends)
    if tolerance is None:
        tolerance = default_tolerance(n, threshold, sparse=bool(degree))
    if scheme is None:
        scheme = Scheme.NONE if variances is None else Scheme.SINGLE
    variances = [Fraction(0)] * chunks if variances is None else list(variances)
    draft = Parameters(
        mode=mode,
        round=run + _word(index, "big"),
        members=_pack(sorted(clients)),
        quorum=threshold if quorum is None else quorum,
        degree=degree,
        threshold=threshold,
        tolerance=tolerance,
        colluders=colluders,
        bits=bits,
        ends=_pack(ends),
        scheme=scheme.value,
        fraction=default_fraction(n, tolerance) if fraction is None else fraction,
        reserve=reserve,
        variances={chunk: str(Fraction(variance)) for chunk, variance in enumerate(variances)},
        tables=b"",
        encoding=encoding or Encoding(),
        model=model,
        beacon=beacon,
    )
    check_rules(draft)
    return msgspec.structs.replace(draft, tables=table_hash(draft, law))


def check_tables(parameters: Parameters, law: NoiseLaw = SKELLAM) -> None:
    """Check that the noise is drawn from the tables that this program builds; that can take seconds."""
    if parameters.tables != table_hash(parameters, law):
        raise ParametersRefused("the noise tables of this round are not the ones this program builds")


def check_rules(parameters: Parameters) -> None:
    """Refuse parameters that break a rule; the server does at configuration, every client at set-up."""
    check_ceilings(parameters)
    check_identity(parameters)
    check_thresholds(parameters)
    check_vector(parameters)
    check_projection(parameters)
    check_noise(parameters)


def check_identity(parameters: Parameters) -> None:
    """Check the mode, the round id, and that U is sorted without repetition."""
    if parameters.mode not in (SEMI_HONEST, MALICIOUS):
        raise ParametersRefused(f"there is no mode '{parameters.mode}'")
    if len(parameters.round) != RUN_BYTES + INDEX_BYTES:
        raise ParametersRefused(f"a round id has {RUN_BYTES} bytes of run and {INDEX_BYTES} of index")
    if len(parameters.members) % _WORD or not parameters.members:
        raise ParametersRefused("the clients of a round are ids of eight bytes each, at least one")
    clients = parameters.clients
    if list(clients) != sorted(set(clients)) or clients[-1] > LARGEST_ID:
        raise ParametersRefused("the clients of a round are distinct ids in ascending order, below 2^63")


def check_thresholds(parameters: Parameters) -> None:
    """Check q (t on the complete graph), T and T_C against each other."""
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


def check_majority(parameters: Parameters) -> None:
    """Against a malicious server two quorums must have an honest client in common: 2q > n + T_C."""
    n, q, T_C = len(parameters.clients), parameters.quorum, parameters.colluders
    if parameters.is_malicious and 2 * q <= n + T_C:
        raise ParametersRefused(f"against a malicious server the quorum must exceed (n + T_C) / 2, not be {q}")


def check_graph(parameters: Parameters) -> None:
    """Check the share threshold against the graph."""
    n, k = len(parameters.clients), parameters.degree
    if k == 0 and parameters.threshold != parameters.quorum:
        raise ParametersRefused("on the complete graph the quorum is the threshold of the shares")
    if k:
        check_neighbourhood(
            n, parameters.tolerance, parameters.colluders, parameters.mode, parameters.quorum, k, parameters.threshold
        )
        check_unpredictable(parameters)


def check_unpredictable(parameters: Parameters) -> None:
    """A sparse graph depends on a beacon: whoever could choose its circle would surround a client with colluders."""
    if len(parameters.beacon) < graph.BEACON_BYTES:
        raise ParametersRefused(f"a sparse graph needs a beacon of {graph.BEACON_BYTES} bytes")


def check_vector(parameters: Parameters) -> None:
    """Check the ring and the chunks."""
    if not 1 <= parameters.bits <= 32:
        raise ParametersRefused(f"bits must lie in 1..32, not {parameters.bits}")
    if len(parameters.ends) % _WORD or not parameters.ends:
        raise ParametersRefused("the ends of the chunks are numbers of eight bytes each, at least one")
    ends = _unpack(parameters.ends)
    if list(ends) != sorted(set(ends)) or ends[0] == 0 or ends[-1] > limits.LARGEST_DIM:
        raise ParametersRefused("chunks end at ascending coordinates, from 1 to 2^31")
    bit = parameters.encoding.bit
    if bit < 0 or (bit and (len(ends) < 2 or ends[-1] - ends[-2] != 1)):
        raise ParametersRefused("the clipping bit is the last chunk of two or more, of one coordinate")


def check_projection(parameters: Parameters) -> None:
    """Check that updates are folded by the known rule, into as many coordinates as are summed, and fewer than d."""
    folded, length = parameters.encoding.projection, parameters.dim - (1 if parameters.encoding.bit else 0)
    if not folded:
        return
    if folded.rule != FOLDING or folded.rounding not in (NEAREST, STOCHASTIC):
        named = f"{folded.rule[: limits.LONGEST_NAME]}' with rounding '{folded.rounding[: limits.LONGEST_NAME]}"
        raise ParametersRefused(f"there is no projection by '{named}'")
    if folded.delivered not in (0, DELIVERED):
        raise ParametersRefused(
            f"a sum is delivered in {DELIVERED} bits a coordinate, or as it is, not in {folded.delivered}"
        )
    if not 1 <= folded.buckets <= length or folded.dim > limits.LARGEST_DIM:
        raise ParametersRefused(f"{folded.dim} coordinates cannot be folded into {folded.buckets} of {length}")
    check_buckets(folded.dim, folded.buckets)


def check_noise(parameters: Parameters) -> None:
    """Check that every chunk has a noise plan that can be kept."""
    if parameters.scheme not in {scheme.value for scheme in Scheme}:
        raise ParametersRefused(f"there is no noise scheme '{parameters.scheme}'")
    if sorted(parameters.variances) != list(range(len(parameters.chunks))):
        raise ParametersRefused("there must be one noise variance for each chunk")
    if parameters.fraction < 1:
        raise ParametersRefused(f"c must be at least 1, not {parameters.fraction}")
    check_components(parameters)
    components = {v for plan in set(parameters.plans) for v in (*plan.base, *plan.removable)}
    check_places(sum(map(places, components)))


def table_hash(parameters: Parameters, law: NoiseLaw = SKELLAM) -> bytes:
    """Return the hash of all noise tables that the round uses, in the order of chunks and components."""
    distinct = set(parameters.plans)
    plans = {plan: b"".join(law.digest(v) for v in (*plan.base, *plan.removable)) for plan in distinct}
    return hashlib.sha256(b"dordis/v1/tables" + b"".join(plans[plan] for plan in parameters.plans)).digest()


def _pack(numbers: Iterable[int]) -> bytes:
    return b"".join(_word(number, "little") for number in numbers)


def _word(number: int, order: Literal["little", "big"]) -> bytes:
    try:
        return number.to_bytes(_WORD, order)
    except OverflowError:
        raise ParametersRefused(f"ids, ends of chunks and the round's index lie in 0..2^64 - 1, not {number}") from None


def _unpack(words: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(words[: len(words) // _WORD * _WORD], "<u8").tolist())
