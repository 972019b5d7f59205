"""The messages of the plaintext protocol: for each stage the reply, then the request."""

from typing import ClassVar

from dordis.protocol import Message
from dordis.protocols.cohort import CohortOpening


class Joined(Message, frozen=True):
    """The reply to `Begin`: the client takes part."""


class Begin(CohortOpening, frozen=True):
    """Set-up: check the parameters and take part."""

    reply: ClassVar = Joined


class Contribution(Message, frozen=True):
    """The input, four bytes a coordinate."""

    bulk: ClassVar = "vector"
    chunk: int
    vector: bytes


class Contribute(Message, frozen=True):
    """Per chunk: send your input."""

    reply: ClassVar = Contribution
    uploads: ClassVar = True
    chunk: int


class Disclosure(Message, frozen=True):
    """The due deposited secrets, by index."""

    chunk: int
    seeds: dict[int, bytes]


class Disclose(Message, frozen=True):
    """Per chunk: disclose the secrets that are due under this U3."""

    reply: ClassVar = Disclosure
    discloses: ClassVar = True
    chunk: int
    survivors: bytes
