"""The interface of summing protocols: server and client machines, their messages, and the result of a chunk.

A protocol is a folder with a `SummingProtocol` in it, which one line of `dordis.protocols.table` names.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec import Meta

from dordis.crypto.suite import Suite
from dordis.errors import ProtocolError, TooFewClients
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
    Role,
    Step,
)
from dordis.protocols.escrow import IssuedSecrets, Releases
from dordis.protocols.limits import LONGEST_OPENING, LONGEST_PROOF, MOST_CLIENTS
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST, Assistance, Parameters
from dordis.protocols.vector_backend import HERE, Vectors

Proof = Annotated[bytes, Meta(max_length=LONGEST_PROOF)]
Proofs = Annotated[dict[int, Proof], Meta(max_length=MOST_CLIENTS)]
"""For every client what proves its selection; more than there can be are not even read."""


class Opening(Message, frozen=True):
    """The first request of a protocol: the parameters, and for every client what proves its selection, if anything."""

    longest: ClassVar = LONGEST_OPENING
    parameters: Parameters
    proofs: Proofs = msgspec.field(default_factory=dict)


class SigningKeys(dict[ClientId, bytes]):
    """The public signing keys of all clients; those of the `helpers`, whose ids are counted apart, are beside them."""

    def __init__(self, clients: Mapping[ClientId, bytes], helpers: Mapping[ClientId, bytes]) -> None:
        super().__init__(clients)
        self.helpers = dict(helpers)


def helper_keys(registry: Mapping[ClientId, bytes]) -> Mapping[ClientId, bytes]:
    """Return the public signing keys of the helpers; none if the registry has only clients."""
    return registry.helpers if isinstance(registry, SigningKeys) else {}


@dataclass(frozen=True)
class Roster:
    """The parties of a round, from which a protocol writes its own part of the parameters."""

    clients: tuple[ClientId, ...] = ()
    """U; empty where clients come after the parameters are fixed."""
    quorum: int = 0
    """The least number of clients of U at any stage."""
    sparse: bool = False
    """Whether clients share secrets with some others only."""
    introductions: Mapping[ClientId, Message] = field(default_factory=dict)
    """The replies of all helpers to the protocol's introductory request; `Garbled` for those that did not answer."""


@dataclass(frozen=True)
class ChunkSum:
    """The sum of the inputs of U3, and the deposited secrets that the protocol released for it."""

    total: Vector = field(repr=False)
    """Modulo 2^32; the low b bits count."""
    survivors: tuple[ClientId, ...]
    released: Mapping[ClientId, Mapping[int, bytes]] = field(default_factory=dict, repr=False)
    """For each client its released secrets, counted from 0; one that could not be recovered is missing."""
    named: frozenset[ClientId] = frozenset()
    """Clients that were caught in a lie, which the sum survived."""
    signatures: Mapping[ClientId, bytes] = field(default_factory=dict, repr=False)
    """A quorum's signatures on the survivors, which others can verify; empty if nothing was signed."""


class SumInput(Protocol):
    """A client's input to the sum, made chunk by chunk with the secrets that the protocol issued for it."""

    @property
    def vector(self) -> Vector:
        """Return the whole encoded vector, over Z_{2^b}."""
        ...

    def check(self, parameters: Parameters) -> None:
        """Refuse parameters by which this input cannot be made; it may take seconds, so cheap checks come before."""
        ...

    def chunk(self, parameters: Parameters, chunk: int, issued: IssuedSecrets) -> Vector:
        """Return the input to one chunk, modulo 2^32, in memory of its own."""
        ...


ChunkResult = TypeVar("ChunkResult")
VerifyClient = Callable[[int, ClientId, bytes], None]
"""Raise unless a client was selected for a round that lists no clients: the round's index, the client, its proof."""


def accept_any_client(index: int, client: ClientId, proof: bytes) -> None:
    """Accept all clients, with open arrival."""


class SummingSetup(ProtocolServer[None]):
    """What runs once a round, before the chunks."""

    ready: tuple[ClientId, ...] = ()
    """The clients that completed it."""
    vectors: Vectors = HERE
    """Where the server computes on whole vectors: the same comes out."""
    fix_survivors: Callable[[tuple[ClientId, ...]], tuple[ClientId, ...]] = staticmethod(lambda u3: u3)
    """Returns the U3 that the server fixed under this index, before a restart or now; the engine, which stores it,
    sets it."""
    verify_client: VerifyClient = staticmethod(accept_any_client)
    """Raises unless a client that contributes was selected, where the round lists no clients; the engine sets it."""
    standing: Any = None
    """What the server remembers of the parties of a run from round to round, if anything; None at first."""

    def output(self) -> None:
        """Return nothing: chunks read what the set-up holds."""


class SummingChunk(ProtocolServer[ChunkSum]):
    """What sums one chunk, and releases secrets for its U3."""

    u3: tuple[ClientId, ...] = ()
    """The clients whose input is in the sum; empty until that is known."""


class ChunkedServer(ProtocolServer[tuple[ChunkResult, ...]]):
    """A server with a set-up once a round, then the chunks, one after the other or in a pipeline."""

    setup: SummingSetup
    chunks: Sequence[ProtocolServer[ChunkResult]]

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the steps of the set-up and of every chunk."""
        return [*self.setup.workflow, *(step for chunk in self.chunks for step in chunk.workflow)]

    def output(self) -> tuple[ChunkResult, ...]:
        """Return the output of every chunk."""
        return tuple(chunk.output() for chunk in self.chunks)


class SummingServer(ChunkedServer[ChunkSum]):
    """The server's machine of a summing protocol."""

    chunks: Sequence[SummingChunk]


class SummingState(ClientState):
    """What a client remembers in any protocol that sums."""

    parameters: Parameters | None = None

    __repr__ = ClientState.__repr__


Remembered = TypeVar("Remembered", bound=SummingState)
Begun = TypeVar("Begun", bound=Parameters)


def begun(parameters: Begun | None) -> Begun:
    """Return the parameters of the round; raise ProtocolError before it has begun."""
    if parameters is None:
        raise ProtocolError("no round has begun")
    return parameters


class SummingClient(ProtocolClient[Remembered]):
    """A client's machine for one round."""

    def __init__(
        self, me: ClientId, given: SumInput, state: Remembered, journal: Journal | None, entropy: Entropy
    ) -> None:
        super().__init__(state, journal)
        self.me, self._entropy = me, entropy
        self._input: SumInput | None = given
        self.selection_proof = b""
        """The proof of this client's selection, for a protocol without a list of clients; the round sets it."""

    @property
    def chunks(self) -> int:
        """Return m."""
        return len(self._parameters.chunks)

    @property
    def uploaded(self) -> bool:
        """Tell whether all chunks of the input have left."""
        place = next((i for i, entry in enumerate(self.routine) if entry.request.uploads), None)
        if place is None:  # in the set-up, all chunks at once
            return self.state.passed.get(SETUP, 0) == len(self.setup)
        return all(self.state.passed.get(chunk, 0) > place for chunk in range(self.chunks))

    @property
    def _parameters(self) -> Parameters:
        return begun(self.state.parameters)

    @property
    def input(self) -> SumInput:
        """Return this client's input; it is erased with the round."""
        if self._input is None:
            raise ProtocolError("the round is over")
        return self._input

    @abstractmethod
    def issued(self, chunk: int) -> IssuedSecrets:
        """Return the secrets that this client issued for a chunk: for its own input, and for audits by a colluder."""

    def close(self) -> None:
        """Leave the round; erase its secrets and the input."""
        self._input = None
        super().close()


WriteParameters = Callable[[Parameters, Roster], Parameters]
"""Return the parameters of a protocol's kind, unchecked, from their common part and the parties of the round."""
MakeServer = Callable[[Any, Mapping[ClientId, bytes], Mapping[ClientId, bytes], Suite], SummingServer]
"""Make the server's machine from the parameters, the registry of signing keys, proofs of selection and the suite."""

CheckSigned = Callable[
    [Any, int, Collection[ClientId], Mapping[int, bytes], Mapping[ClientId, bytes], Suite],
    None,
]
"""Raise unless a quorum signed the survivors of a chunk: parameters, chunk, survivors, signatures, signing keys."""


class MakeClient(Protocol):
    """Make a client's machine of a round from its input, which was encoded for the parameters of that round."""

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
    """Make a helper of all rounds of a run; its long-term private key is `secret`.

    Only a protocol that `verifies_selection` is given `verify_client`.
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
"""The request at which a client leaves a round, by its name."""


class Prediction(Protocol):
    """The outcome of a round whose dropouts are known in advance; each method raises what the protocol would raise."""

    def survivors(self) -> tuple[ClientId, ...]:
        """Return U3; raise if the round fails before any client uploads."""

    def check_before_disclosure(self) -> None:
        """Raise if the round fails after the uploads, but before the request that opens the sum."""

    def check_after_disclosure(self) -> None:
        """Raise if the round fails after the request that opens the sum."""

    def unreleased(self, due: Releases) -> Releases:
        """Return the secrets that are due and cannot be recovered."""


@dataclass(frozen=True)
class ArrivalPrediction:
    """The outcome of a round in which every client contributes once and all helpers answer."""

    parameters: Parameters
    arrived: tuple[ClientId, ...]
    stage: str

    def survivors(self) -> tuple[ClientId, ...]:
        """Return U3: all clients that came."""
        return tuple(sorted(self.arrived))

    def check_before_disclosure(self) -> None:
        """Raise if fewer than n_min clients came."""
        check_arrived(self.parameters, self.stage, self.arrived)

    def check_after_disclosure(self) -> None:
        """Raise nothing: no client is needed any more."""

    def unreleased(self, due: Releases) -> Releases:
        """Return nothing: helpers release all that is due."""
        return {}


def check_arrived(parameters: Parameters, stage: str, arrived: Collection[ClientId]) -> None:
    """Raise TooFewClients if fewer than n_min clients contributed."""
    if len(arrived) < parameters.n_min:
        raise TooFewClients(stage, len(arrived), parameters.n_min)


@dataclass(frozen=True)
class SummingProtocol:
    """A summing protocol: factories of its machines, requests in stage order, parameters, supported threat models.

    A protocol with `helpers` names the factory of its `helper`, and the request by which each `introduces` itself
    before the parameters are fixed, made from the round id.  A protocol without a cohort fixes its parameters before
    any client is asked, and takes the clients that come (`OpenCall`); it needs no prediction of its own.
    """

    name: str
    server: MakeServer
    client: MakeClient
    requests: tuple[type[Message], ...]
    predict: Callable[[Any, Leaving], Prediction] | None
    """Predicts the course of a round from departures; None for a protocol without a cohort."""
    parameters: type[Parameters]
    """The kind of its parameters."""
    agree: WriteParameters
    """Adds its own part to the common part of the parameters."""
    sparse: bool = False
    """Whether clients share masks and secrets with some others only."""
    modes: frozenset[str] = frozenset({SEMI_HONEST, MALICIOUS})
    """The servers that it can be run against."""
    hides_updates: bool = True
    """Whether the server learns nothing but the sum; a protocol that does not hide inputs protects nobody."""

    helpers: int = 0
    """The number of helpers."""
    helper: MakeHelper | None = None
    introduces: Callable[[bytes], Message] | None = None
    assistance: Assistance | None = None
    """The helpers that clients trust, where the protocol states how many of them may collude."""
    strategies: frozenset[str] | None = None
    """The noise strategies that it can be run with; None: all."""
    configure: "Callable[[SummingProtocol, Mapping[str, Any], str], SummingProtocol] | None" = None
    """Returns the protocol with `protocol.options` of a configuration in a mode; None: it has no options."""
    verifies_selection: bool = False
    """Without a cohort: whether contributions prove their clients' selection and helpers verify it; if not, the only
    arrival is open."""
    check_signed: CheckSigned | None = None
    """Verifies a quorum's signatures on the survivors of a chunk; None if the protocol signs no survivors."""

    @property
    def helper_ids(self) -> tuple[ClientId, ...]:
        """Return the ids of the helpers: those that clients trust by name, or from 1 on."""
        named = range(1, self.helpers + 1) if self.assistance is None else self.assistance.helpers
        return tuple(map(ClientId, named))

    @property
    def has_cohort(self) -> bool:
        """Tell whether the list of clients U is fixed before the sum."""
        return self.predict is not None

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """Return the names of the requests at which a client can be missed, in order."""
        return tuple(request.__name__ for request in self._client_stages)

    @property
    def _client_stages(self) -> Sequence[type[Message]]:
        return [request for request in self.requests if request.role is Role.CLIENT and not request.ahead]

    @cached_property
    def upload(self) -> int:
        """Return the place of the first stage whose answer holds data."""
        return next(i for i, stage in enumerate(self._client_stages) if stage.uploads)
