"""Messages of the network protocol: log-in, requests and replies that carry the messages of a round, and signed tasks.

Each message is one binary WebSocket frame.  The field `frame` of a request or reply has an encoded message of a
round.  A vector or model that belongs to that message, its *body*, is not in the frame: it is sent by HTTPS
(`upload_endpoint`, `download_endpoint`), and the field `body` has its size and digest.

The task of an assisted round is a document that visiting clients fetch at any time.  It has the run id, the round's
parameters with the helpers' signed keys, the digest of the model, and the closing time.  The server signs the task with
the key of its certificate.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dordis import wire
from dordis.errors import MalformedMessage, ProtocolError
from dordis.identity import certificates
from dordis.identity.certificates import TlsKey
from dordis.protocol import Message
from dordis.protocols.limits import LONGEST_INVITE, LONGEST_OPENING
from dordis.protocols.summing import Opening, SummingProtocol
from dordis.rounds.invitation import Invite

VERSION = 5
"""Version of the messages of this module; `wire.VERSION` is the version of a round's messages."""
SUBPROTOCOL = f"dordis.{VERSION}.{wire.VERSION}"
"""Both versions, as the WebSocket handshake negotiates them."""
VERSION_HEADER = "Dordis-Version"
"""HTTP header with both versions: in requests of visiting clients, and in the refusal of a client's version."""
TOKEN_BYTES, MACHINE_BYTES, CHALLENGE_BYTES = 32, 16, 32
HEARTBEAT = 20.0
"""Seconds between pings on a control connection."""
POLICY_VIOLATION = 1008
"""WebSocket close code with which the server refuses a client."""
LARGEST_TASK = LONGEST_INVITE + LONGEST_OPENING + (1 << 16)
"""Largest size of a signed task in bytes."""

_MAC_KEY_BYTES, _NONCE = 16, bytes(12)
_TASK_LABEL = b"dordis/v1/task"


class BodyInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and digest of a body: a large field of a message, such as a vector or model, that is sent by HTTPS.

    The digest detects transmission errors, and names downloads.  It does not authenticate the sender; TLS does.
    """

    size: int
    digest: bytes

    @classmethod
    def from_upload(cls, data: wire.Bulk, entropy: Callable[[int], bytes] = secrets.token_bytes) -> "BodyInfo":
        """Return the announcement of an upload.

        Its digest is a random key, followed by an AES-GMAC of the data under this key, which is faster than SHA-256.
        """
        key = entropy(_MAC_KEY_BYTES)
        return cls(len(data), key + _mac(key, data))

    @classmethod
    def from_download(cls, data: wire.Bulk) -> "BodyInfo":
        """Return the announcement of a download; its digest, the SHA-256 of the data, is also its name in URLs."""
        return cls(len(data), hashlib.sha256(data).digest())

    def check_upload(self, data: wire.Bulk) -> None:
        """Raise MalformedMessage unless the uploaded `data` have the announced digest."""
        key, mac = self.digest[:_MAC_KEY_BYTES], self.digest[_MAC_KEY_BYTES:]
        if len(key) != _MAC_KEY_BYTES or not hmac.compare_digest(_mac(key, data), mac):
            raise MalformedMessage("an upload does not match its announced digest")

    def check_download(self, data: wire.Bulk) -> None:
        """Raise MalformedMessage unless the downloaded `data` have the announced digest."""
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
    """Client to server: the client's answer to `Challenge`; with mutual TLS the answer is empty."""

    answer: bytes
    machine: bytes
    """Random id of the client process; a reconnection has the same id, another process of this client does not."""
    run: bytes = b""
    """Id of the run that this client process has joined, whose manifest it has already; empty if none."""

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
    """Server to client: an encoded request of a round; `body` announces a large field that the client downloads."""

    id: int
    frame: bytes
    body: BodyInfo | None = None


class Reply(Message, frozen=True):
    """Client to server: the encoded reply to request `id`; `body` announces a vector that the client uploads."""

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


class RoundTask(Message, frozen=True):
    """The task of an assisted round: invitation, opening request of the summing protocol, and closing time."""

    longest: ClassVar = LARGEST_TASK
    invite: Invite
    opening: bytes
    """The encoded request that opens the summing protocol, with the round's parameters."""
    closes: int
    """Closing time in seconds since 1970; the server may extend it."""


class SignedTask(Message, frozen=True):
    """An encoded task, the server's certificate (DER), and the task's ECDSA signature by the certificate's key."""

    longest: ClassVar = LARGEST_TASK
    task: bytes
    certificate: bytes
    signature: bytes


def sign_task(task: RoundTask, key: TlsKey, certificate: x509.Certificate) -> bytes:
    """Return an encoded `SignedTask`: the task, and its signature by the key of the server's certificate."""
    frame = wire.encode(task)
    signature = key.sign(_TASK_LABEL + frame, ec.ECDSA(hashes.SHA256()))
    return wire.encode(SignedTask(frame, certificates.to_der(certificate), signature))


def read_task(document: bytes, authority: x509.Certificate, now: datetime) -> RoundTask:
    """Return the task in a signed document; raise unless a server that the authority certified has signed it."""
    signed = wire.decode(document, SignedTask, LARGEST_TASK)
    certificate = certificates.from_der(signed.certificate)
    certificates.check_issued_by(certificate, authority)
    certificates.check_purpose(certificate, server=True)
    certificates.check_valid_at(certificate, now)
    check_task_signed(certificate, signed)
    return wire.decode(signed.task, RoundTask, LARGEST_TASK)


def check_task_signed(certificate: x509.Certificate, signed: SignedTask) -> None:
    """Raise ProtocolError unless the key of the server's certificate signed the task."""
    try:
        certificates.tls_public_key(certificate).verify(
            signed.signature, _TASK_LABEL + signed.task, ec.ECDSA(hashes.SHA256())
        )
    except InvalidSignature:
        raise ProtocolError("the task of the round is not signed by the server that it names") from None


def opening_of(task: RoundTask, protocol: SummingProtocol) -> Opening:
    """Return the opening request of the summing protocol from a task; raise MalformedMessage for another message."""
    kinds = [kind for kind in protocol.requests if issubclass(kind, Opening)]
    if len(kinds) != 1:
        raise MalformedMessage(f"the protocol '{protocol.name}' has no single opening request")
    return wire.decode(task.opening, kinds[0])


def task_tag(document: bytes) -> str:
    """Return the HTTP entity tag of a signed task; a client that sends the tag does not get the same task again."""
    return f'"{hashlib.sha256(document).hexdigest()}"'
