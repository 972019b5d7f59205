"""The task of an assisted round: a document that the server signs and clients fetch at any time.

It has the run id, the parameters of the round with the helpers' signed keys, the digest of the model, and the closing
time.  The key of the server's certificate signs it, so that a client can verify its origin even if a load balancer
terminates TLS.
"""

import hashlib
from datetime import datetime
from typing import ClassVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from dordis import wire
from dordis.errors import MalformedMessage, ProtocolError
from dordis.identity import certificates
from dordis.identity.certificates import TlsKey
from dordis.protocol import Message
from dordis.protocols.limits import LONGEST_INVITE, LONGEST_OPENING
from dordis.protocols.summing import Opening, SummingProtocol
from dordis.rounds.invitation import Invite

_LABEL = b"dordis/v1/task"
LARGEST_TASK = LONGEST_INVITE + LONGEST_OPENING + (1 << 16)
"""Largest size of a signed task in bytes."""


class RoundTask(Message, frozen=True):
    """The invitation to a round, the opening request of its summing protocol, and its closing time."""

    longest: ClassVar = LARGEST_TASK
    invite: Invite
    opening: bytes
    """Frame of the request that opens the summing protocol, with the parameters."""
    closes: int
    """Closing time in seconds since 1970; the server may extend it."""


class SignedTask(Message, frozen=True):
    """The frame of a task, the server's certificate (DER), and the ECDSA signature by the certificate's key."""

    longest: ClassVar = LARGEST_TASK
    task: bytes
    certificate: bytes
    signature: bytes


def sign_task(task: RoundTask, key: TlsKey, certificate: x509.Certificate) -> bytes:
    """Return the signed document of a task."""
    frame = wire.encode(task)
    signature = key.sign(_statement(frame), ec.ECDSA(hashes.SHA256()))
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
            signed.signature, _statement(signed.task), ec.ECDSA(hashes.SHA256())
        )
    except InvalidSignature:
        raise ProtocolError("the task of the round is not signed by the server that it names") from None


def opening_of(task: RoundTask, protocol: SummingProtocol) -> Opening:
    """Return the request in a task that opens the summing protocol; raise MalformedMessage if it is another message."""
    kinds = [kind for kind in protocol.requests if issubclass(kind, Opening)]
    if len(kinds) != 1:
        raise MalformedMessage(f"the protocol '{protocol.name}' has no single opening request")
    return wire.decode(task.opening, kinds[0])


def task_tag(document: bytes) -> str:
    """Return the HTTP entity tag of a signed task, by which the server recognises that a client has it."""
    return f'"{hashlib.sha256(document).hexdigest()}"'


def _statement(frame: bytes) -> bytes:
    return _LABEL + frame
