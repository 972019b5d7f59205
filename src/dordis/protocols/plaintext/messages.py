"""What the plaintext protocol puts on the wire: for each stage the reply, then the request."""

from typing import ClassVar

from dordis.protocol import Message
from dordis.protocols.cohort import CohortOpening


class Joined(Message, frozen=True):
    """I take part."""


class Begin(CohortOpening, frozen=True):
    """Set-up: these are the parameters."""

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
    """The deposited secrets that are due, by their place."""

    chunk: int
    seeds: dict[int, bytes]


class Disclose(Message, frozen=True):
    """Per chunk: this is U3; disclose the secrets that are due."""

    reply: ClassVar = Disclosure
    discloses: ClassVar = True
    chunk: int
    survivors: bytes
