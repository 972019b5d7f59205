"""Building blocks of protocols in which each client sends one message, and helpers let the server unmask the sum.

A helper is a party without data, and a *box* is a secret that a client encrypts to one helper.  In these protocols the
parameters of a round list the helpers and no clients.  The server publishes the parameters (`ArrivalSetup`), and each
arriving client answers once (`OneMessageClient`).  What the helpers then send to the server depends on the protocol.
n_min is the least number of clients in a sum.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np
from msgspec.structs import replace

from dordis.crypto import kdf
from dordis.crypto.suite import Suite
from dordis.errors import ParametersRefused, ProtocolError, TooFewClients
from dordis.kernels.ring import Vector, add_packed, packed_size
from dordis.privacy.encoding import Entropy
from dordis.protocol import ClientId, Flow, Journal, Message, On, OpenCall, Resource, Role, Step
from dordis.protocols.escrow import SECRET_BYTES, Releases, draw_secrets
from dordis.protocols.parameters import Parameters, check_rules, extend
from dordis.protocols.summing import Opening, Roster, SumInput, SummingClient, SummingSetup, SummingState, of_kind

KEY_BYTES = 32


class HelperKey(Message, frozen=True):
    """A helper's public key for a round."""

    key: bytes


class ShowKey(Message, frozen=True):
    """To helpers, before the parameters are fixed: show your public key for this round."""

    reply: ClassVar = HelperKey
    role: ClassVar = Role.HELPER
    round: bytes


class HelperParameters(Parameters, frozen=True, dict=True, kw_only=True):
    """The parameters that all protocols have, and the public key of every helper for this round."""

    helpers: dict[int, bytes]

    def check_own(self) -> None:
        if not self.helpers or any(len(key) != KEY_BYTES for key in self.helpers.values()):
            raise ParametersRefused(f"a round has helpers, each with a key of {KEY_BYTES} bytes")


def agree_with_helpers(common: Parameters, roster: Roster) -> HelperParameters:
    """Return the parameters of a round, unchecked: `common`, and the keys of the helpers that answered `ShowKey`."""
    shown = {int(h): reply.key for h, reply in roster.introductions.items() if isinstance(reply, HelperKey)}
    return extend(common, HelperParameters, helpers=dict(sorted(shown.items())))


class BoxedContribution(Message, frozen=True):
    """A client's masked input, packed, its boxes by helper, and the fresh public key with which helpers open them."""

    bulk: ClassVar = "vector"
    key: bytes
    boxes: dict[int, bytes]
    vector: bytes


def seal_boxes(
    suite: Suite,
    parameters: Parameters,
    me: ClientId,
    keys: Mapping[int, bytes],
    secrets: Mapping[int, bytes],
    entropy: Entropy,
    use: str = "box",
) -> tuple[bytes, dict[int, bytes]]:
    """Encrypt one secret to each helper in `keys`; return the client's fresh public key, and the boxes by helper.

    `keys` has the helpers' public keys.  `use` names the kind of box; `open_box` needs the same `use`.
    """
    private = suite.agreement.generate(entropy)
    public = suite.agreement.public_key(private)
    boxes = {
        helper: suite.cipher.encrypt(
            *_box_key(suite, parameters, suite.agreement.agree(private, key), (public, key), me, helper, use),
            secrets[helper],
            public,
        )
        for helper, key in sorted(keys.items())
    }
    return public, boxes


def open_box(
    suite: Suite,
    parameters: Parameters,
    private: bytes,
    helper: int,
    client: ClientId,
    key: bytes,
    box: bytes,
    *,
    own: bytes = b"",
    use: str = "box",
) -> bytes:
    """Return the secret in a client's box for this helper; `private` is the helper's private key.

    `key` is the client's public key, and `own` the helper's (computed if omitted).  Raise CryptoError if the box was
    altered, or was not made by this client, for this helper, round and `use`.
    """
    own = own or suite.agreement.public_key(private)
    shared = suite.agreement.agree(private, key)
    return suite.cipher.decrypt(*_box_key(suite, parameters, shared, (key, own), client, helper, use), box, key)


def _box_key(
    suite: Suite, parameters: Parameters, shared: bytes, keys: tuple[bytes, bytes], client: int, helper: int, use: str
) -> tuple[bytes, bytes]:
    """Return key and nonce for the box from a client to a helper, bound to `keys`: the client's, then the helper's.

    `shared` is the secret that the two agreed on, and `use` the purpose of the box, for domain separation.
    """
    label, size = kdf.label(use, parameters.round, 0, client, helper), suite.cipher.KEY_BYTES
    derived = kdf.derive(shared, label + b"".join(keys), parameters.digest, size + suite.cipher.NONCE_BYTES)
    return derived[:size], derived[size:]


class OneMessageState(SummingState):
    """The state of a client: parameters, a seed for each helper, and the private secrets of each chunk."""

    parameters: HelperParameters | None = None
    seeds: dict[int, bytes] = msgspec.field(default_factory=dict)
    private: dict[int, tuple[bytes, ...]] = msgspec.field(default_factory=dict)


class OneMessageClient(SummingClient[OneMessageState]):
    """A client that answers one request, the opening of the round, with its contribution."""

    opening: ClassVar[type[Opening]]
    """The one request that the client answers."""
    routine = ()

    def __init__(
        self, me: ClientId, given: SumInput, *, journal: Journal | None, entropy: Entropy, **unused: Any
    ) -> None:
        super().__init__(me, given, OneMessageState(), journal, entropy)

    @property
    def setup(self) -> Sequence[On[Any]]:
        return (On(self.opening, self.begin),)

    def begin(self, request: Opening) -> BoxedContribution:
        """Check the parameters, draw the escrow's private secrets and a seed per helper; return the contribution."""
        parameters, state = request.parameters, self.state
        if not isinstance(parameters, HelperParameters):
            raise ParametersRefused("the round has no helpers")
        check_rules(parameters)
        self.input.check(parameters)
        state.parameters = parameters
        state.seeds = {h: self._entropy(SECRET_BYTES) for h in parameters.helpers}
        escrows = map(parameters.escrow, range(self.chunks))
        state.private = {k: draw_secrets(escrow, self._entropy).private for k, escrow in enumerate(escrows)}
        return self.contribute(parameters)

    @abstractmethod
    def contribute(self, parameters: HelperParameters) -> BoxedContribution:
        """Return the masked input, with a box for each helper."""


def check_arrived(parameters: Parameters, stage: str, arrived: Collection[ClientId]) -> None:
    """Raise TooFewClients if fewer than n_min clients contributed; the error names the `stage`."""
    if len(arrived) < parameters.n_min:
        raise TooFewClients(stage, len(arrived), parameters.n_min)


class ArrivalSetup(SummingSetup):
    """The server's set-up: it publishes the opening, a request to any client, and adds up clients' contributions."""

    def __init__(self, opening: Opening, helpers: Collection[int]) -> None:
        self.parameters, self._opening, self._helpers = opening.parameters, opening, frozenset(helpers)
        self.total: Vector = np.zeros(self.parameters.dim, np.uint32)
        self.contributions: dict[ClientId, BoxedContribution] = {}
        """Contributions without their vectors, which are added to `total`."""

    @property
    def workflow(self) -> Sequence[Step]:
        return (Step(self.take_contributions, Resource.NETWORK),)

    def take_contributions(self) -> Flow:
        """Add up the contributions as they arrive; raise TooFewClients if fewer than n_min clients contributed."""
        for u, reply in (yield OpenCall(self._opening, self.parameters.n_max, self.check)):
            whole = of_kind(BoxedContribution, reply)
            add_packed(self.total, whole.vector, self.parameters.bits)
            self.contributions[u] = replace(whole, vector=b"")
        self.contributions = dict(sorted(self.contributions.items()))
        check_arrived(self.parameters, type(self._opening).__name__, self.contributions)

    def check(self, u: ClientId, reply: Message) -> None:
        """Raise ProtocolError unless a contribution has one box for each helper and a vector of the right length."""
        reply = of_kind(BoxedContribution, reply)
        if reply.boxes.keys() != self._helpers:
            raise ProtocolError("a contribution has a box for each helper of the round, and no others")
        size = packed_size(self.parameters.dim, self.parameters.bits)
        if len(reply.vector) != size:
            raise ProtocolError(f"the vector of a contribution has {size} bytes, not {len(reply.vector)}")


@dataclass(frozen=True)
class ArrivalPrediction:
    """The outcome of a round to which the clients in `arrived` contribute, and in which all helpers answer."""

    parameters: Parameters
    arrived: tuple[ClientId, ...]
    stage: str

    def survivors(self) -> tuple[ClientId, ...]:
        """Return the survivors, U3: all clients that arrived."""
        return tuple(sorted(self.arrived))

    def check_before_disclosure(self) -> None:
        """Raise TooFewClients if fewer than n_min clients arrived."""
        check_arrived(self.parameters, self.stage, self.arrived)

    def check_after_disclosure(self) -> None:
        """Raise nothing: clients are not needed after their contribution."""

    def unreleased(self, due: Releases) -> Releases:
        """Return an empty map: helpers release all secrets in `due`."""
        return {}
