"""The parameters of a round, on whose hash all parties agree, and the rules that the parameters must keep.

`Parameters` has the fields of all summing protocols: round, client counts, ring, chunks, noise, encoding, model.  A
protocol adds fields in a subclass, such as the list of clients U in `cohort.CohortParameters`.  The hash goes into all
key derivations, commitments and ciphertexts: parties with different parameters cannot decrypt each other's secrets.
"""

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable
from fractions import Fraction
from functools import cached_property, partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from dordis import wire
from dordis.errors import ParametersRefused
from dordis.privacy.clipping import clipping_bit
from dordis.privacy.encoding import DELIVERED_BITS, NEAREST, STOCHASTIC
from dordis.privacy.further_releases import FurtherRelease
from dordis.privacy.record_encoding import RecordEncoding
from dordis.privacy.scaling import check_buckets
from dordis.privacy.skellam_noise import SKELLAM, NoiseLaw, support_bound
from dordis.privacy.xnoise_components import Due, NoisePlan, Scheme, default_fraction, read_noise_plan, removal_context
from dordis.protocol import ClientId, Message
from dordis.protocols import limits
from dordis.protocols.escrow import Escrow
from dordis.protocols.limits import check_ceilings, check_components, check_places

SEMI_HONEST = "semi-honest"
MALICIOUS = "malicious"
RUN_BYTES, INDEX_BYTES = 32, 8
FOLDING = "random signs, modulo k"
"""The only rule of folding: coordinate i of an update, with a random sign, is added to bucket i modulo k."""
LARGEST_ID, WORD = 2**63 - 1, 8
Known = TypeVar("Known")

Variances = Annotated[dict[int, str], Meta(max_length=limits.MOST_CHUNKS)]
"""Noise variances by chunk; a map with more than `MOST_CHUNKS` entries is refused before an entry is read."""


class Projection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an update of `dim` coordinates is folded into `buckets` and rounded, and how the sum is delivered.

    The random signs of the folding are derived from the seed of the rotation, under a separate label.
    """

    dim: int
    buckets: int
    rounding: str = NEAREST
    delivered: int = DELIVERED_BITS
    """Bits to which each coordinate of the sum is quantised for delivery; 0: it is not quantised."""
    rule: str = FOLDING


class Encoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How updates become vectors of integers modulo 2^b; all clients agree on it, summing protocols do not read it.

    `sensitivity` is the squared l2-sensitivity of the sum of these vectors, `rotation` the public seed of the rotation.
    `noise` describes the mechanism's own noise (`Mechanism.noise`), which no `NoisePlan` contains; left out if none.
    """

    mechanism: str = "none"
    clip: float = 0.0
    sensitivity: int = 0
    scale: float = 1.0
    block: int = 1
    rotation: bytes = b""
    bit: int = 0
    """Scale of the clipping bit, the first further release; 0 if there is none."""
    noise: str | UnsetType = UNSET
    projection: Projection | UnsetType = UNSET
    """How updates are folded; left out if they are not."""
    records: RecordEncoding | UnsetType = UNSET
    """How records are sampled and encoded; left out if clients are the unit of privacy."""
    further: tuple[FurtherRelease, ...] | UnsetType = UNSET
    """Further releases other than the clipping bit; left out if there are none."""

    @property
    def further_releases(self) -> tuple[FurtherRelease, ...]:
        """Return all further releases in the order of their chunks; the clipping bit, if any, is the first."""
        return (*((clipping_bit(self.bit),) if self.bit else ()), *(self.further or ()))


class Assistance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The helpers that a client trusts: at most `faulty` of them collude with the server."""

    helpers: tuple[int, ...]
    faulty: int
    no_base: bool = False
    """Whether more than `faulty` helpers could, together with the server, see an update without noise."""


class Parameters(Message, frozen=True, dict=True, kw_only=True):
    """The parameters of one round that all summing protocols have; protocols add their own in subclasses.

    `round` is the run id, then the round's index.  A sum is over `n_min` to `n_max` clients, modulo 2^`bits`;
    `colluders` is T_C.  `ends` has each chunk's end (a coordinate) in eight bytes.  `variances` maps each chunk to its
    planned noise variance, sigma*^2, as a fraction.  `scheme`, `fraction`, `reserve` are fields of all `NoisePlan`s.
    `tables` and `model` are hashes of noise tables and model; `participations` limits a client's rounds (open arrival).
    """

    mode: str
    round: bytes
    n_min: int
    n_max: int
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
    participations: int | UnsetType = UNSET

    @cached_property
    def digest(self) -> bytes:
        """Return the hash of all parameters, their class and the protocol version."""
        return hashlib.sha256(b"dordis/v1/parameters" + wire.encode(self)).digest()

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Return U, the clients of the round, sorted; empty if no list of clients is fixed before the sum."""
        return ()

    @property
    def cohort(self) -> int:
        """Return the size of U, or n_min if no list of clients is fixed before the sum."""
        return self.n_min

    @property
    def tolerance(self) -> int:
        """Return T, the largest number of clients that may be missing from a sum: n_max - n_min."""
        return self.n_max - self.n_min

    @property
    def quorum_fraction(self) -> Fraction | None:
        """Return the least fraction of the clients U that must answer every stage; None if clients answer only once."""
        return None

    @property
    def is_sparse(self) -> bool:
        """Tell whether clients share secrets only with neighbours, on a graph drawn from the beacon."""
        return False

    @property
    def colluders_around(self) -> int:
        """Return a bound on the colluders among the clients with which one honest client shares secrets; here T_C."""
        return self.colluders

    @property
    def assistance(self) -> Assistance | None:
        """Return the helpers that a client trusts; None without helpers, or without a bound on how many collude."""
        return None

    @property
    def own_sizes(self) -> tuple[tuple[str, int, int], ...]:
        """Return name, size and ceiling of each list or number that the protocol adds, for `check_ceilings`."""
        return ()

    def check_own(self) -> None:
        """Raise ParametersRefused if a field that a protocol's subclass adds breaks a rule."""

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
        """Tell whether the round withstands a malicious server; then keys, shares and survivors are signed."""
        return self.mode == MALICIOUS

    @cached_property
    def chunks(self) -> tuple[slice, ...]:
        """Return the coordinates of each chunk, as a slice of the summed vector."""
        ends = unpack_words(self.ends)
        return tuple(slice(start, end) for start, end in zip((0, *ends), ends, strict=False))

    @property
    def dim(self) -> int:
        """Return the length of the summed vector: the encoded update and all further releases."""
        return unpack_words(self.ends)[-1]

    @property
    def update_dim(self) -> int:
        """Return the length of the encoded update, without further releases."""
        return self.dim - sum(release.length for release in self.encoding.further_releases)

    @property
    def release_chunks(self) -> tuple[range, ...]:
        """Return the chunks of each release: first the chunks of the update, then one chunk per further release."""
        chunks, further = len(self.chunks), len(self.encoding.further_releases)
        return range(chunks - further), *(range(chunk, chunk + 1) for chunk in range(chunks - further, chunks))

    @cached_property
    def plans(self) -> tuple[NoisePlan, ...]:
        """Return the noise plan of each chunk."""
        counts = self.n_max, self.tolerance, self.colluders
        plans = {
            text: read_noise_plan(self.scheme, *counts, text, self.fraction, self.reserve)
            for text in set(self.variances.values())
        }
        return tuple(plans[self.variances[chunk]] for chunk in range(len(self.chunks)))

    def escrow(self, chunk: int) -> Escrow:
        """Return the escrow of a chunk: how many noise seeds a client has, and the rule by which seeds are released."""
        plan = self.plans[chunk]
        return Escrow(len(plan.base), len(plan.removable), partial(self.due, chunk))

    def due(self, chunk: int, survivors: Collection[ClientId]) -> Due:
        """Return, for each of the survivors, the indices of its removable noise components that are due for removal."""
        return self.plans[chunk].due_components(survivors, removal_context(self.round, chunk, self.digest))

    def once(self, key: Hashable, compute: Callable[[], Known]) -> Known:
        """Return `compute()`, cached under `key` in this object, which simulated clients share at ideal fidelity."""
        known: dict[Hashable, Known] = self.__dict__.setdefault("_known", {})
        if key not in known:
            known[key] = compute()
        return known[key]


Kind = TypeVar("Kind", bound=Parameters)


def common_part(
    *,
    run: bytes,
    index: int,
    n_min: int,
    n_max: int,
    bits: int,
    ends: Collection[int],
    colluders: int = 1,
    scheme: Scheme | None = None,
    variances: Collection[Fraction | int] | None = None,
    fraction: int | None = None,
    reserve: int = 0,
    mode: str = SEMI_HONEST,
    encoding: Encoding | None = None,
    model: bytes = b"",
    beacon: bytes = b"",
    participations: int | UnsetType = UNSET,
) -> Parameters:
    """Return the parameters that all summing protocols have, unchecked, with defaults for omitted values.

    The default scheme is `single` if variances are given; without variances there is no noise.
    """
    if scheme is None:
        scheme = Scheme.NONE if variances is None else Scheme.SINGLE
    given = [Fraction(0)] * len(ends) if variances is None else list(variances)
    return Parameters(
        mode=mode,
        round=run + _word(index, "big"),
        n_min=n_min,
        n_max=n_max,
        colluders=colluders,
        bits=bits,
        ends=pack_words(ends),
        scheme=scheme.value,
        fraction=default_fraction(n_max, n_max - n_min) if fraction is None else fraction,
        reserve=reserve,
        variances={chunk: str(Fraction(variance)) for chunk, variance in enumerate(given)},
        tables=b"",
        encoding=encoding or Encoding(),
        model=model,
        beacon=beacon,
        participations=participations,
    )


def extend(common: Parameters, kind: type[Kind], **own: Any) -> Kind:
    """Return parameters of class `kind`, with the fields of `common` and the fields `own`, which the class adds."""
    return kind(**{name: getattr(common, name) for name in Parameters.__struct_fields__}, **own)


def complete(draft: Kind, law: NoiseLaw = SKELLAM) -> Kind:
    """Return `draft` with the hash of its noise tables filled in; raise ParametersRefused if it breaks a rule."""
    check_rules(draft)
    return msgspec.structs.replace(draft, tables=table_hash(draft, law))


def check_tables(parameters: Parameters, law: NoiseLaw = SKELLAM) -> None:
    """Raise ParametersRefused unless this program's noise tables have the agreed hash; building them takes seconds."""
    if parameters.tables != table_hash(parameters, law):
        raise ParametersRefused("the noise tables of this round are not the ones this program builds")


def check_rules(parameters: Parameters) -> None:
    """Raise ParametersRefused if a rule is broken; the server checks when it configures a round, clients at set-up."""
    check_ceilings(parameters)
    check_identity(parameters)
    parameters.check_own()
    check_vector(parameters)
    check_projection(parameters)
    check_noise(parameters)


def check_identity(parameters: Parameters) -> None:
    """Raise ParametersRefused if the mode is unknown or the round id has the wrong length."""
    if parameters.mode not in (SEMI_HONEST, MALICIOUS):
        raise ParametersRefused(f"there is no mode '{parameters.mode}'")
    if len(parameters.round) != RUN_BYTES + INDEX_BYTES:
        raise ParametersRefused(f"a round id has {RUN_BYTES} bytes of run and {INDEX_BYTES} of index")


def check_vector(parameters: Parameters) -> None:
    """Raise ParametersRefused if the ring or the ends of the chunks are invalid."""
    if not 1 <= parameters.bits <= 32:
        raise ParametersRefused(f"bits must lie in 1..32, not {parameters.bits}")
    if len(parameters.ends) % WORD or not parameters.ends:
        raise ParametersRefused("the ends of the chunks are numbers of eight bytes each, at least one")
    ends = unpack_words(parameters.ends)
    if list(ends) != sorted(set(ends)) or ends[0] == 0 or ends[-1] > limits.LARGEST_DIM:
        raise ParametersRefused("chunks end at ascending coordinates, from 1 to 2^31")
    check_further(parameters)


def check_further(parameters: Parameters) -> None:
    """Raise ParametersRefused unless each further release is bounded, and has one chunk, after those of the update."""
    further = parameters.encoding.further_releases
    if len({release.name for release in further}) < len(further) or parameters.encoding.bit < 0:
        raise ParametersRefused("further releases have different names, and the clipping bit a scale of 0 or more")
    if len(parameters.chunks) <= len(further):
        raise ParametersRefused(f"{len(further)} further releases, such as a clipping bit, need a chunk each")
    spans = parameters.chunks[len(parameters.chunks) - len(further) :]
    for release, span in zip(further, spans, strict=True):
        name = release.name[: limits.LONGEST_NAME]
        if min(release.scale, release.length, release.bound) < 1 or not release.name or name != release.name:
            raise ParametersRefused(f"the further release '{name}' has a scale, length and bound of 1 or more")
        if span.stop - span.start != release.length:
            raise ParametersRefused(f"the further release '{name}' is a chunk of {release.length} coordinate(s)")
        if release.scale * release.bound >= 2**31:
            raise ParametersRefused(f"the values of the further release '{name}' do not fit any ring")


def check_projection(parameters: Parameters) -> None:
    """Raise ParametersRefused if updates are folded by an unknown rule, or into a wrong number of buckets."""
    folded, length = parameters.encoding.projection, parameters.update_dim
    if not folded:
        return
    if folded.rule != FOLDING or folded.rounding not in (NEAREST, STOCHASTIC):
        named = f"{folded.rule[: limits.LONGEST_NAME]}' with rounding '{folded.rounding[: limits.LONGEST_NAME]}"
        raise ParametersRefused(f"there is no projection by '{named}'")
    if folded.delivered not in (0, DELIVERED_BITS):
        raise ParametersRefused(
            f"a sum is delivered in {DELIVERED_BITS} bits a coordinate, or not quantised at all, not in "
            f"{folded.delivered}"
        )
    if not 1 <= folded.buckets <= length or folded.dim > limits.LARGEST_DIM:
        raise ParametersRefused(f"{folded.dim} coordinates cannot be folded into {folded.buckets} of {length}")
    check_buckets(folded.dim, folded.buckets)


def check_noise(parameters: Parameters) -> None:
    """Raise ParametersRefused unless every chunk has a valid noise plan, and the noise tables are not too large."""
    if parameters.scheme not in {scheme.value for scheme in Scheme}:
        raise ParametersRefused(f"there is no noise scheme '{parameters.scheme}'")
    if sorted(parameters.variances) != list(range(len(parameters.chunks))):
        raise ParametersRefused("there must be one noise variance for each chunk")
    if parameters.fraction < 1:
        raise ParametersRefused(f"c must be at least 1, not {parameters.fraction}")
    check_components(parameters)
    components = {v for plan in set(parameters.plans) for v in (*plan.base, *plan.removable)}
    check_places(sum(map(support_bound, components)))


def table_hash(parameters: Parameters, law: NoiseLaw = SKELLAM) -> bytes:
    """Return the hash of all noise tables, chunk by chunk, and in a chunk base components before removable ones."""
    distinct = set(parameters.plans)
    plans = {plan: b"".join(law.digest(v) for v in (*plan.base, *plan.removable)) for plan in distinct}
    return hashlib.sha256(b"dordis/v1/tables" + b"".join(plans[plan] for plan in parameters.plans)).digest()


def pack_words(numbers: Iterable[int]) -> bytes:
    """Return numbers as little-endian words of eight bytes; raise ParametersRefused if one does not fit."""
    return b"".join(_word(number, "little") for number in numbers)


def _word(number: int, order: Literal["little", "big"]) -> bytes:
    try:
        return number.to_bytes(WORD, order)
    except OverflowError:
        raise ParametersRefused(f"ids, ends of chunks and the round's index lie in 0..2^64 - 1, not {number}") from None


def unpack_words(words: bytes) -> tuple[int, ...]:
    """Return the numbers in little-endian words of eight bytes; excess bytes at the end (up to seven) are ignored."""
    return tuple(np.frombuffer(words[: len(words) // WORD * WORD], "<u8").tolist())
