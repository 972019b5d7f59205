"""Messages of the network protocol: log-in, and the requests and replies that carry the messages of a round.

Each message is one binary WebSocket frame.  The body of a round's message, a vector or a model, does not travel in the
frame: the frame announces its size and digest, and the body moves by HTTPS (`uploads`, `downloads`).
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable

import msgspec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dordis import wire
from dordis.errors import MalformedMessage
from dordis.protocol import Message

VERSION = 5
"""Version of these messages; the messages of a round inside them have the version of `dordis.wire`."""
SUBPROTOCOL = f"dordis.{VERSION}.{wire.VERSION}"
"""Both versions, as negotiated in the WebSocket handshake."""
VERSION_HEADER = "Dordis-Version"
"""HTTP header with the server's versions, sent when it refuses those of a client."""
TOKEN_BYTES, MACHINE_BYTES, CHALLENGE_BYTES = 32, 16, 32

_MAC_KEY_BYTES, _NONCE = 16, bytes(12)


class BodyInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and digest of a body that travels by HTTPS.

    The digest detects transmission errors and names downloads; it authenticates nobody, which is the task of TLS.
    """

    size: int
    digest: bytes

    @classmethod
    def from_upload(cls, data: wire.Bulk, entropy: Callable[[int], bytes] = secrets.token_bytes) -> "BodyInfo":
        """Describe an upload; the digest is a fresh key and the AES-GMAC, ten times as fast as SHA-256."""
        key = entropy(_MAC_KEY_BYTES)
        return cls(len(data), key + _mac(key, data))

    @classmethod
    def from_download(cls, data: wire.Bulk) -> "BodyInfo":
        """Describe a download; the digest is SHA-256, so that equal bodies have one name."""
        return cls(len(data), hashlib.sha256(data).digest())

    def check_upload(self, data: wire.Bulk) -> None:
        """Raise MalformedMessage unless the digest is that of an upload with these bytes."""
        key, mac = self.digest[:_MAC_KEY_BYTES], self.digest[_MAC_KEY_BYTES:]
        if len(key) != _MAC_KEY_BYTES or not hmac.compare_digest(_mac(key, data), mac):
            raise MalformedMessage("an upload does not match its announced digest")

    def check_download(self, data: wire.Bulk) -> None:
        """Raise MalformedMessage unless the digest is that of a download with these bytes."""
        if hashlib.sha256(data).digest() != self.digest:
            raise MalformedMessage("a download does not match its announced digest")

    def __repr__(self) -> str:
        return f"<BodyInfo: {self.size} bytes>"


def _mac(key: bytes, data: wire.Bulk) -> bytes:
    mac = Cipher(algorithms.AES128(key), modes.GCM(_NONCE)).encryptor()
    mac.authenticate_additional_data(data)
    mac.finalize()
    return mac.tag


class Challenge(Message, frozen=True):
    """Server to client, first message of the log-in: 32 random bytes to sign."""

    challenge: bytes


class Hello(Message, frozen=True):
    """Client to server: the answer to the challenge, which is empty with mutual TLS."""

    answer: bytes
    machine: bytes
    """Random id of the client process: tells a reconnection from a second client with the same identity."""
    run: bytes = b""
    """Run that this process has joined before; its manifest need not be sent again."""

    def __repr__(self) -> str:
        return "<Hello>"


class Welcome(Message, frozen=True):
    """Server to client: the log-in succeeded; client id, run and the access token for all later requests."""

    client: int
    run: bytes
    manifest: bytes
    """Manifest file, whose hash is the run id; empty if the client named this run in its Hello."""
    token: bytes

    def __repr__(self) -> str:
        return f"<Welcome of client {self.client}>"


class Request(Message, frozen=True):
    """Server to client: a message of a round to reply to; its body, if any, is to be downloaded."""

    id: int
    frame: bytes
    body: BodyInfo | None = None


class Reply(Message, frozen=True):
    """Client to server: the reply to a request; its body, if any, is uploaded."""

    id: int
    frame: bytes
    body: BodyInfo | None = None


class Refusal(Message, frozen=True):
    """Client to server: no reply will come; the name of the error says why."""

    id: int
    error: str


class Shutdown(Message, frozen=True):
    """Server to client: the server stops; `run_over` tells whether the run has ended or may be resumed."""

    run_over: bool = False
    reason: str = ""
    """Why the server stops before the run is over."""


FromServer = Challenge | Welcome | Request | Shutdown
FromClient = Reply | Refusal
