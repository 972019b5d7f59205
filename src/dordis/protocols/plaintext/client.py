"""The plaintext client: it sends its input without masks."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import ProtocolError
from dordis.privacy.encoding import Entropy
from dordis.protocol import ClientId, ClientState, Journal, On
from dordis.protocols import parameters as rules
from dordis.protocols.cohort import CohortParameters, CohortState
from dordis.protocols.escrow import IssuedSecrets, draw_secrets
from dordis.protocols.plaintext.messages import Begin, Contribute, Contribution, Disclose, Disclosure, Joined
from dordis.protocols.summing import SumInput, SummingClient, require_parameters


class PlaintextState(CohortState):
    """The state of a plaintext client."""

    issued: dict[int, IssuedSecrets] = msgspec.field(default_factory=dict)

    __repr__ = ClientState.__repr__


class PlaintextClient(SummingClient[PlaintextState]):
    """A client that sends its input; tests pass `issued` secrets, to run two protocols with the same secrets."""

    def __init__(
        self,
        me: ClientId,
        given: SumInput,
        issued: Mapping[int, IssuedSecrets] | None = None,
        *,
        signing: bytes = b"",
        registry: Mapping[ClientId, bytes] | None = None,
        suite: Suite = DEFAULT,
        journal: Journal | None = None,
        entropy: Entropy = secrets.token_bytes,
    ) -> None:
        super().__init__(me, given, PlaintextState(issued=dict(issued or {})), journal, entropy)

    @property
    def setup(self) -> Sequence[On[Any]]:
        """Return the only request that the client answers before its upload, with the method that answers it."""
        return (On(Begin, self.join),)

    @property
    def routine(self) -> Sequence[On[Any]]:
        """Return the two requests of every chunk."""
        return On(Contribute, self.contribute), On(Disclose, self.disclose)

    @property
    def _parameters(self) -> CohortParameters:
        return require_parameters(self.state.parameters)

    def join(self, request: Begin) -> Joined:
        """Check the parameters, and draw secrets for the chunks without `issued` ones."""
        rules.check_rules(request.parameters)
        self.input.check(request.parameters)
        self.state.parameters = request.parameters
        for chunk in range(self.chunks):
            drawn = draw_secrets(request.parameters.escrow(chunk), self._entropy)
            self.state.issued.setdefault(chunk, drawn)
        return Joined()

    def contribute(self, request: Contribute) -> Contribution:
        """Return this client's input to a chunk."""
        given = self.input.chunk(self._parameters, request.chunk, self.issued(request.chunk))
        return Contribution(request.chunk, given.astype("<u4", copy=False).tobytes())

    def issued(self, chunk: int) -> IssuedSecrets:
        """Return the private and the deposited secrets of a chunk."""
        return self.state.issued[chunk]

    def disclose(self, request: Disclose) -> Disclosure:
        """Return this client's deposited secrets that are due; raise ProtocolError if it is not in U3."""
        survivors = self._parameters.unpack(request.survivors)
        due = self._parameters.escrow(request.chunk).releases(survivors)
        if self.me not in due:
            raise ProtocolError("U3 is shown to a client that is not in it")
        deposited = self.issued(request.chunk).deposited
        return Disclosure(request.chunk, {k: deposited[k] for k in due[self.me]})
