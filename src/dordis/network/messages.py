"""What server and clients say to each other around the messages of a round: who I am, please answer, here it is.

Control goes over one WebSocket for each client, a binary frame for each of these messages.  What travels beside the
frame of a round's message is announced here, with its size and its digest, and moves by HTTPS: see `bulk`.
"""

import msgspec

from dordis import wire
from dordis.protocol import Message

VERSION = 3
"""Of what is said here; the messages inside have the version of `dordis.wire`."""
SUBPROTOCOL = f"dordis.{VERSION}.{wire.VERSION}"
"""Both versions: what WebSocket's handshake agrees on, or not."""
VERSION_HEADER = "Dordis-Version"
"""Where a server that refuses a version tells its own."""
TOKEN_BYTES, MACHINE_BYTES, CHALLENGE_BYTES = 32, 16, 32


class Beside(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What travels beside a frame: how much, and the digest that it is compared with."""

    size: int
    digest: bytes

    def __repr__(self) -> str:
        return f"<Beside of {self.size} bytes>"


class Challenge(Message, frozen=True):
    """From the server, first: prove who you are, by TLS or by signing this."""

    challenge: bytes


class Hello(Message, frozen=True):
    """From the client: the answer, empty where TLS proves it; `machine` tells a reconnection from a second client."""

    answer: bytes
    machine: bytes
    run: bytes = b""
    """The run that this client is in since it was started: its manifest need not be sent again."""

    def __repr__(self) -> str:
        return "<Hello>"


class Welcome(Message, frozen=True):
    """From the server: you are this client, in this run; the token is for what moves by HTTPS."""

    client: int
    run: bytes
    manifest: bytes
    """The file that the run id is the hash of; empty if the client has said that it is in this run."""
    token: bytes
    port: int = 0
    """Where to send vectors, if not to the port of this connection: that of a process that only receives."""

    def __repr__(self) -> str:
        return f"<Welcome of client {self.client}>"


class Asked(Message, frozen=True):
    """From the server: answer this message of a round, whose bulk, if any, is to be fetched."""

    id: int
    frame: bytes
    beside: Beside | None = None


class Answered(Message, frozen=True):
    """From the client: the answer, whose bulk, if any, is put."""

    id: int
    frame: bytes
    beside: Beside | None = None


class Declined(Message, frozen=True):
    """From the client: I do not answer; the kind of the error says why."""

    id: int
    error: str


class Ended(Message, frozen=True):
    """From the server: it stops, and the run is over, or may be resumed in the round that is under way."""

    over: bool = False


FromServer = Challenge | Welcome | Asked | Ended
FromClient = Answered | Declined
