"""The interface of summing protocols: server, client and helper, their messages, and the result of a chunk.

A protocol is a module or a folder that defines a `SummingProtocol`, and one line of the table in `dordis.protocols`.
Servers collect replies with `collect`: a malformed reply counts as a dropout, and its sender as a liar.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec import Meta

from dordis.crypto.suite import Suite
from dordis.errors import CryptoError, InputError, MalformedMessage, ProtocolError
from dordis.kernels.ring import Vector
from dordis.privacy.encoding import Entropy
from dordis.protocol import (
    SETUP,
    ClientId,
    ClientState,
    Journal,
    Message,
    Party,
    ProtocolClient,
    ProtocolServer,
    Replies,
    Role,
    Step,
)
from dordis.protocols.escrow import IssuedSecrets, Releases
from dordis.protocols.limits import LONGEST_OPENING, LONGEST_PROOF, MOST_CLIENTS
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST, Assistance, Parameters
from dordis.protocols.vector_backend import LOCAL, Vectors

Proof = Annotated[bytes, Meta(max_length=LONGEST_PROOF)]
Proofs = Annotated[dict[int, Proof], Meta(max_length=MOST_CLIENTS)]
"""The clients' proofs of selection, by client; a map of more than `MOST_CLIENTS` is refused before an entry is read."""


class Opening(Message, frozen=True):
    """The first request of a protocol to clients: the parameters, and the clients' proofs of selection, if any."""

    longest: ClassVar = LONGEST_OPENING
    parameters: Parameters
    proofs: Proofs = msgspec.field(default_factory=dict)


class SigningKeys(dict[ClientId, bytes]):
    """The public signing keys of all clients, by client id; `helpers` has the helpers' keys, by helper id."""

    def __init__(self, clients: Mapping[ClientId, bytes], helpers: Mapping[ClientId, bytes]) -> None:
        super().__init__(clients)
        self.helpers = dict(helpers)


def helper_keys(registry: Mapping[ClientId, bytes]) -> Mapping[ClientId, bytes]:
    """Return the public signing keys of the helpers; none if the registry has only clients."""
    return registry.helpers if isinstance(registry, SigningKeys) else {}


@dataclass(frozen=True)
class Roster:
    """The parties of a round, from which a protocol computes the fields that it adds to the common parameters."""

    clients: tuple[ClientId, ...] = ()
    """U, the clients of the round; empty if clients arrive after the parameters are fixed."""
    quorum: int = 0
    """The least number of clients of U that must answer each stage."""
    sparse: bool = False
    """Whether clients share secrets only with neighbours on a sparse graph."""
    introductions: Mapping[ClientId, Message] = field(default_factory=dict)
    """The replies of all helpers to the protocol's introductory request; `Garbled` for helpers that did not answer."""


@dataclass(frozen=True)
class ChunkSum:
    """The sum of one chunk over its survivors (U3), and the deposited secrets that the protocol released."""

    total: Vector = field(repr=False)
    """The sum modulo 2^32; only the low b bits are valid, where 2^b is the size of the ring."""
    survivors: tuple[ClientId, ...]
    released: Mapping[ClientId, Mapping[int, bytes]] = field(default_factory=dict, repr=False)
    """For each client those of its deposited secrets that the server received, by index; lost ones are missing."""
    named: frozenset[ClientId] = frozenset()
    """Clients that provably lied; the sum is right nevertheless."""
    signatures: Mapping[ClientId, bytes] = field(default_factory=dict, repr=False)
    """A quorum's signatures on the survivors, which others can verify; empty if nothing was signed."""


class SumInput(Protocol):
    """A client's input to the sum; `chunk` may add noise, drawn from the client's secrets for this chunk."""

    @property
    def vector(self) -> Vector:
        """Return the whole encoded vector, over Z_{2^b}."""

    def check(self, parameters: Parameters) -> None:
        """Raise if this input does not fit the parameters; call this after all other checks: it may take seconds."""

    def chunk(self, parameters: Parameters, chunk: int, issued: IssuedSecrets) -> Vector:
        """Return a new array with the input to one chunk, modulo 2^32; `issued` are the client's secrets for it."""


ChunkResult = TypeVar("ChunkResult")
VerifyClient = Callable[[int, ClientId, bytes], None]
"""In rounds without U: takes the round's index, a client and its proof; raises unless the client was selected."""


def accept_any_client(index: int, client: ClientId, proof: bytes) -> None:
    """Accept every client, for rounds with open arrival, in which any registered client may take part."""


Reply = TypeVar("Reply", bound=Message)
Parsed = TypeVar("Parsed")


def collect(
    asked: Collection[ClientId],
    kind: type[Reply],
    replies: Replies,
    check: Callable[[ClientId, Reply], Parsed],
    liars: set[ClientId] | None = None,
) -> dict[ClientId, Parsed]:
    """Return, by client, the result of `check` on the client's reply, for the clients in `asked`.

    A reply of another class than `kind`, or one that `check` refuses, is left out, and its sender added to `liars`.
    """
    accepted: dict[ClientId, Parsed] = {}
    for u, reply in replies:
        if u in accepted or u not in asked:
            continue
        try:
            accepted[u] = check(u, of_kind(kind, reply))
        except (ProtocolError, CryptoError, InputError):
            catch(u, set() if liars is None else liars)
    return dict(sorted(accepted.items()))


def catch(u: ClientId, liars: set[ClientId]) -> None:
    """Add client `u` to `liars`, because it sent a message that no honest client sends."""
    liars.add(u)


def of_kind(kind: type[Reply], reply: Message) -> Reply:
    """Return `reply` if it is of the class `kind`; otherwise raise MalformedMessage."""
    if not isinstance(reply, kind):
        raise MalformedMessage(f"this is a {type(reply).__name__}, not a {kind.__name__}")
    return reply


class SummingSetup(ProtocolServer[None]):
    """The server's set-up, which runs once a round before the chunks."""

    ready: tuple[ClientId, ...] = ()
    """The clients that completed the set-up."""
    vectors: Vectors = LOCAL
    """Where the server computes on whole vectors: in this process or in workers, with the same results."""
    fix_survivors: Callable[[tuple[ClientId, ...]], tuple[ClientId, ...]] = staticmethod(lambda u3: u3)
    """Stores the survivors of the round and returns them, or returns those stored before a restart; the `RoundEngine`
    sets this function."""
    verify_client: VerifyClient = staticmethod(accept_any_client)
    """Raises unless an arriving client was selected for the round; the `RoundEngine` sets this function."""
    run_colluders: int | None = None
    """Largest number of clients that may collude over all rounds of a run; if None, T_C of the round is used."""
    standing: Any = None
    """What the server remembers about the parties from round to round, such as complaints; None: nothing."""

    def output(self) -> None:
        """Return nothing: the chunks' servers read the results from attributes of the set-up."""


class SummingChunk(ProtocolServer[ChunkSum]):
    """The server's part in one chunk: it sums the inputs, and obtains the secrets that `protocols.escrow` releases."""

    u3: tuple[ClientId, ...] = ()
    """The survivors, U3: the clients whose input is in the sum; empty until the uploads have ended."""


class ChunkedServer(ProtocolServer[tuple[ChunkResult, ...]]):
    """A server with a set-up once a round, then the chunks, one after the other or in a pipeline."""

    setup: SummingSetup
    chunks: Sequence[ProtocolServer[ChunkResult]]

    @property
    def workflow(self) -> Sequence[Step]:
        return [*self.setup.workflow, *(step for chunk in self.chunks for step in chunk.workflow)]

    def output(self) -> tuple[ChunkResult, ...]:
        return tuple(chunk.output() for chunk in self.chunks)


class SummingServer(ChunkedServer[ChunkSum]):
    """The server of a summing protocol for one round; each chunk outputs a `ChunkSum`."""

    chunks: Sequence[SummingChunk]


class SummingState(ClientState):
    """The state of a client in any summing protocol."""

    parameters: Parameters | None = None


Remembered = TypeVar("Remembered", bound=SummingState)
Agreed = TypeVar("Agreed", bound=Parameters)


def require_parameters(parameters: Agreed | None) -> Agreed:
    """Return the parameters of the round; raise ProtocolError if no round has begun."""
    if parameters is None:
        raise ProtocolError("no round has begun")
    return parameters


class SummingClient(ProtocolClient[Remembered]):
    """The client of a summing protocol for one round."""

    def __init__(
        self, me: ClientId, given: SumInput, state: Remembered, journal: Journal | None, entropy: Entropy
    ) -> None:
        super().__init__(state, journal)
        self.me, self._entropy = me, entropy
        self._input: SumInput | None = given
        self.selection_proof = b""
        """The proof of this client's selection, for rounds without a list U; set by `dordis.rounds.client`."""

    @property
    def chunks(self) -> int:
        return len(self._parameters.chunks)

    @property
    def uploaded(self) -> bool:
        """Tell whether all chunks of the input have been uploaded."""
        place = next((i for i, entry in enumerate(self.routine) if entry.request.uploads), None)
        if place is None:  # all chunks are uploaded at once, in the set-up
            return self.state.passed.get(SETUP, 0) == len(self.setup)
        return all(self.state.passed.get(chunk, 0) > place for chunk in range(self.chunks))

    @property
    def _parameters(self) -> Parameters:
        return require_parameters(self.state.parameters)

    @property
    def input(self) -> SumInput:
        """Return this client's input; raise ProtocolError after the round, when it is erased."""
        if self._input is None:
            raise ProtocolError("the round is over")
        return self._input

    @abstractmethod
    def issued(self, chunk: int) -> IssuedSecrets:
        """Return this client's secrets for a chunk; the input to the chunk is computed with them (`SumInput.chunk`)."""

    def close(self) -> None:
        """Leave the round; erase this client's secrets and its input."""
        self._input = None
        super().close()


WriteParameters = Callable[[Parameters, Roster], Parameters]
"""Returns a protocol's parameters, not yet checked, from their common part and the parties of the round."""
MakeServer = Callable[[Any, Mapping[ClientId, bytes], Mapping[ClientId, bytes], Suite], SummingServer]
"""Makes the server of one round from parameters, registry of signing keys, proofs of selection and suite."""

CheckSigned = Callable[[Any, int, Collection[ClientId], Mapping[int, bytes], Mapping[ClientId, bytes], Suite], None]
"""Raises unless a quorum signed a chunk's survivors; takes parameters, chunk, survivors, signatures, keys and suite."""


class MakeClient(Protocol):
    """Makes the client of one round from its input, which was encoded for the parameters of that round."""

    def __call__(
        self,
        me: ClientId,
        given: SumInput,
        *,
        signing: bytes,
        registry: Mapping[ClientId, bytes],
        suite: Suite,
        journal: Journal | None,
        entropy: Entropy,
    ) -> SummingClient[Any]:
        """Return the client of one round."""


class MakeHelper(Protocol):
    """Makes a helper for all rounds of a run; its long-term private key is `secret`.

    `verify_client` is passed only if the protocol `verifies_selection`.
    """

    def __call__(
        self,
        me: ClientId,
        *,
        secret: bytes,
        registry: Mapping[ClientId, bytes],
        suite: Suite,
        verify_client: VerifyClient = accept_any_client,
    ) -> Party:
        """Return the helper of one run."""


Leaving = Mapping[ClientId, str]
"""For each client that drops out, the name of the first request that it does not answer."""


class Prediction(Protocol):
    """The outcome of a round whose dropouts are known in advance; each method raises what the protocol would raise."""

    def survivors(self) -> tuple[ClientId, ...]:
        """Return the survivors, U3; raise if the round fails before any client uploads."""

    def check_before_disclosure(self) -> None:
        """Raise if the round fails after the uploads, but before the request that lets the server unmask the sum."""

    def check_after_disclosure(self) -> None:
        """Raise if the round fails after the request that lets the server unmask the sum."""

    def unreleased(self, due: Releases) -> Releases:
        """Return the secrets in `due` that the server cannot recover after the dropouts.

        `due` names the deposited secrets that the server should receive (`Escrow.releases`).
        """


@dataclass(frozen=True)
class SummingProtocol:
    """A summing protocol: factories of server, client and helper, requests in stage order, parameters, threat models.

    If a protocol has `helpers`, `helper` makes a helper, and `introduces` returns, for a round id, the request for a
    helper's keys for this round, which each helper answers before the parameters are fixed.  Most protocols have a
    cohort: U, a list of clients that is fixed before the sum.  A protocol without a cohort admits clients as they
    arrive (`OpenCall`), and its `predict` is None.
    """

    name: str
    server: MakeServer
    client: MakeClient
    requests: tuple[type[Message], ...]
    predict: Callable[[Any, Leaving], Prediction] | None
    """Predicts the outcome of a round from its dropouts; None for a protocol without a cohort."""
    parameters: type[Parameters]
    """The class of the protocol's parameters."""
    agree: WriteParameters
    """Returns the protocol's parameters from their common part and the parties of the round."""
    sparse: bool = False
    """Whether clients share masks and secrets only with neighbours on a sparse graph."""
    modes: frozenset[str] = frozenset({SEMI_HONEST, MALICIOUS})
    """The modes, semi-honest or malicious, in which the protocol can be run."""
    hides_updates: bool = True
    """Whether the server learns nothing but the sum; a protocol that does not hide inputs protects nobody."""

    helpers: int = 0
    """The number of helpers."""
    helper: MakeHelper | None = None
    introduces: Callable[[bytes], Message] | None = None
    assistance: Assistance | None = None
    """The helpers that clients trust; None if the protocol does not bound how many helpers may collude."""
    strategies: frozenset[str] | None = None
    """The noise strategies with which the protocol can be run; None: all."""
    configure: "Callable[[SummingProtocol, Mapping[str, Any], str], SummingProtocol] | None" = None
    """Returns the given protocol with the settings `protocol.options`, in a mode; None if it has no options."""
    verifies_selection: bool = False
    """Whether each contribution proves that its client was selected, and helpers verify the proof.  A protocol without
    a cohort that does not verify the selection supports open arrival only."""
    check_signed: CheckSigned | None = None
    """Verifies a quorum's signatures on the survivors of a chunk; None if the protocol signs no survivors."""

    @property
    def helper_ids(self) -> tuple[ClientId, ...]:
        """Return the ids of the helpers: those in `assistance` or, if this is None, 1 to `helpers`."""
        named = range(1, self.helpers + 1) if self.assistance is None else self.assistance.helpers
        return tuple(map(ClientId, named))

    @property
    def has_cohort(self) -> bool:
        """Tell whether the list of clients U is fixed before the sum."""
        return self.predict is not None

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """Return the names of the requests at which a client can drop out, in order."""
        return tuple(request.__name__ for request in self._client_stages)

    @property
    def _client_stages(self) -> Sequence[type[Message]]:
        return [request for request in self.requests if request.role is Role.CLIENT and not request.ahead]

    @cached_property
    def upload(self) -> int:
        """Return the index in `stages` of the first request that asks for an upload."""
        return next(i for i, stage in enumerate(self._client_stages) if stage.uploads)
