"""The state of a SecAgg client: its own secrets for each chunk, and the keys and shares of its peers."""

import msgspec

from dordis.protocol import ClientState
from dordis.protocols.cohort import CohortParameters, CohortState
from dordis.protocols.escrow import IssuedSecrets
from dordis.protocols.secagg.messages import Advertisement

KEY, SELF_MASK, FIRST_DEPOSITED = 0, 1, 2
"""Indices of the secrets that a client shares for a chunk: masking key, self-mask seed, first deposited secret."""


def shared_count(parameters: CohortParameters, chunk: int) -> int:
    """Return how many secrets a client shares for a chunk: masking key, self-mask seed, deposited secrets."""
    return FIRST_DEPOSITED + parameters.escrow(chunk).deposited


class Secrets(msgspec.Struct, frozen=True):
    """A client's own secrets for one chunk."""

    masking: bytes
    """s_u^SK of the paper: private key of the pairwise masks; shared among neighbours."""
    self_mask: bytes
    """b_u of the paper: seed of the self-mask; shared among neighbours."""
    token: bytes
    """Token sent with the upload; the server shows it to other clients as proof of the upload."""
    issued: IssuedSecrets
    """Private and deposited secrets of the chunk's escrow; the deposited ones are shared among neighbours."""

    def __repr__(self) -> str:
        return "<Secrets>"

    @property
    def shared(self) -> tuple[bytes, ...]:
        """Return the secrets that are shared among neighbours, in the order of their shares."""
        return (self.masking, self.self_mask, *self.issued.deposited)


class SecAggState(CohortState):
    """The state of a SecAgg client: parameters, its secrets, peers' keys, the shares it holds, and each chunk's U3."""

    channel: bytes = b""
    secrets: dict[int, Secrets] = msgspec.field(default_factory=dict)
    advertisements: dict[int, Advertisement] = msgspec.field(default_factory=dict)
    own_shares: bytes = b""
    shares: dict[int, bytes] = msgspec.field(default_factory=dict)
    members: bytes = b""
    accused: bool = False
    survivors: dict[int, bytes] = msgspec.field(default_factory=dict)

    __repr__ = ClientState.__repr__
