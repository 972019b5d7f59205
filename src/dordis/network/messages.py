"""Messages of the network protocol: log-in, and requests and replies that carry the messages of a round.

Each message is one binary WebSocket frame.  The body of a round's message, a vector or a model, is not in the frame:
the frame has its size and digest, and the body is sent by HTTPS (`upload_endpoint`, `server_transfers`).
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
"""Version of the messages of this module; `wire.VERSION` is the version of a round's messages."""
SUBPROTOCOL = f"dordis.{VERSION}.{wire.VERSION}"
"""Both versions, as the WebSocket handshake negotiates them."""
VERSION_HEADER = "Dordis-Version"
"""HTTP header with both versions: in requests of visiting clients, and in the refusal of a client's version."""
TOKEN_BYTES, MACHINE_BYTES, CHALLENGE_BYTES = 32, 16, 32

_MAC_KEY_BYTES, _NONCE = 16, bytes(12)


class BodyInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and digest of a body that is sent by HTTPS.

    The digest detects transmission errors and names downloads.  It does not authenticate; TLS does.
    """

    size: int
    digest: bytes

    @classmethod
    def from_upload(cls, data: wire.Bulk, entropy: Callable[[int], bytes] = secrets.token_bytes) -> "BodyInfo":
        """Return the announcement of an upload; its digest is a random key and an AES-GMAC, faster than SHA-256."""
        key = entropy(_MAC_KEY_BYTES)
        return cls(len(data), key + _mac(key, data))

    @classmethod
    def from_download(cls, data: wire.Bulk) -> "BodyInfo":
        """Return the announcement of a download, whose digest is SHA-256, so that equal bodies have one name."""
        return cls(len(data), hashlib.sha256(data).digest())

    def check_upload(self, data: wire.Bulk) -> None:
        """Raise MalformedMessage unless these bytes of an upload have the announced digest."""
        key, mac = self.digest[:_MAC_KEY_BYTES], self.digest[_MAC_KEY_BYTES:]
        if len(key) != _MAC_KEY_BYTES or not hmac.compare_digest(_mac(key, data), mac):
            raise MalformedMessage("an upload does not match its announced digest")

    def check_download(self, data: wire.Bulk) -> None:
        """Raise MalformedMessage unless these bytes of a download have the announced digest."""
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
    """Server to client, the first message of the log-in: 32 random bytes to sign."""

    challenge: bytes


class Hello(Message, frozen=True):
    """Client to server: the answer to the challenge, which is empty with mutual TLS."""

    answer: bytes
    machine: bytes
    """Random id of the client process, which tells a reconnection from a second client with the same identity."""
    run: bytes = b""
    """Id of the run that this process joined before, whose manifest need not be sent again; empty if none."""

    def __repr__(self) -> str:
        return "<Hello>"


class Welcome(Message, frozen=True):
    """Server to client: the log-in succeeded; client id, run id, manifest, and the access token for later requests."""

    client: int
    run: bytes
    manifest: bytes
    """Content of the manifest, whose hash is the run id; empty if Hello named this run."""
    token: bytes

    def __repr__(self) -> str:
        return f"<Welcome of client {self.client}>"


class Request(Message, frozen=True):
    """Server to client: a message of a round that requires a reply; `body` announces a body to download."""

    id: int
    frame: bytes
    body: BodyInfo | None = None


class Reply(Message, frozen=True):
    """Client to server: the reply to a request; `body` announces a body that the client uploads."""

    id: int
    frame: bytes
    body: BodyInfo | None = None


class Refusal(Message, frozen=True):
    """Client to server: the client refuses a request; `error` is the class name of the error, or empty."""

    id: int
    error: str


class Shutdown(Message, frozen=True):
    """Server to client: the server stops; `run_over` tells whether the run has ended or may be resumed."""

    run_over: bool = False
    reason: str = ""
    """Why the server stops before the run is over; empty if it is over."""


FromServer = Challenge | Welcome | Request | Shutdown
FromClient = Reply | Refusal
