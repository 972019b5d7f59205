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
    """A client's input to a chunk, four bytes for each coordinate."""

    bulk: ClassVar = "vector"
    chunk: int
    vector: bytes


class Contribute(Message, frozen=True):
    """Per chunk: send your input."""

    reply: ClassVar = Contribution
    uploads: ClassVar = True
    chunk: int


class Disclosure(Message, frozen=True):
    """The client's deposited secrets that are due for release, by index."""

    chunk: int
    seeds: dict[int, bytes]


class Disclose(Message, frozen=True):
    """Per chunk: disclose the secrets that are due for release, given the survivors, U3."""

    reply: ClassVar = Disclosure
    discloses: ClassVar = True
    chunk: int
    survivors: bytes
