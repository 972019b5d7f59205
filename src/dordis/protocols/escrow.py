"""Escrow: secrets that every client deposits with a summing protocol, and the rule that says which are released.

For every chunk a protocol's client draws or derives (*issues*) secrets of 32 bytes.  *Private* secrets never leave the
client.  *Deposited* secrets can be *released*: the protocol hands them to the server.  Once U3, the clients in the sum,
is fixed, the protocol releases the deposited secrets that the rule names, and no others.  A protocol does not know what
the secrets are for: `dordis.protocols.noise_addition_and_removal` uses them as seeds of noise.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import msgspec

from dordis.privacy.encoding import Entropy
from dordis.protocol import ClientId

SECRET_BYTES = 32
Releases = Mapping[int, tuple[int, ...]]
"""For each client in the sum, the zero-based indices of those of its deposited secrets that the server receives."""


@dataclass(frozen=True)
class Escrow:
    """How many private and deposited secrets a client has for a chunk, and the rule that releases deposited secrets.

    `rule` returns, for given survivors, the deposited secrets that the server receives.
    """

    private: int
    deposited: int
    rule: Callable[[Collection[ClientId]], Releases]

    def releases(self, survivors: Collection[ClientId]) -> Releases:
        """Return, for each survivor, the indices of those of its deposited secrets that the server receives."""
        return self.rule(survivors)


class IssuedSecrets(msgspec.Struct, frozen=True):
    """The secrets that one client issued for one chunk."""

    private: tuple[bytes, ...]
    """Secrets that never leave the client."""
    deposited: tuple[bytes, ...]
    """Secrets that the server receives if the escrow's rule names them."""

    def __repr__(self) -> str:
        return "<IssuedSecrets>"


def draw_secrets(escrow: Escrow, entropy: Entropy) -> IssuedSecrets:
    """Return a client's secrets for one chunk, drawn at random: first the private, then the deposited secrets."""
    private, deposited = (
        tuple(entropy(SECRET_BYTES) for _ in range(count)) for count in (escrow.private, escrow.deposited)
    )
    return IssuedSecrets(private, deposited)
