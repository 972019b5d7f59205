"""The task of an assisted round: a static document that the server signs and clients fetch when they like.

It names the run by the digest of its manifest, and has the parameters of the round with the helpers' signed keys, the
digest of the model and the closing time.  The key of the server's certificate signs it: also where a load balancer ends
TLS, a client knows that the task is its server's.
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
"""Bytes of the largest signed task that a client reads."""


class RoundTask(Message, frozen=True):
    """What a client needs to contribute to a round: the invitation, the opening request, and the closing time."""

    longest: ClassVar = LARGEST_TASK
    invite: Invite
    opening: bytes
    """Frame of the request that opens the summing protocol; it has the parameters."""
    closes: int
    """Seconds since 1970 after which the round takes no contribution, unless it is extended."""


class SignedTask(Message, frozen=True):
    """The frame of a task, the server's certificate (DER), and the ECDSA signature of its key."""

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
    """Return the task of a document; raise unless a server that the authority certified signed it."""
    signed = wire.decode(document, SignedTask, LARGEST_TASK)
    certificate = certificates.from_der(signed.certificate)
    certificates.check_issued_by(certificate, authority)
    certificates.check_purpose(certificate, server=True)
    certificates.check_valid_at(certificate, now)
    check_task_signed(certificate, signed)
    return wire.decode(signed.task, RoundTask, LARGEST_TASK)


def check_task_signed(certificate: x509.Certificate, signed: SignedTask) -> None:
    """The key of the server's certificate signed the task: nobody between changed parameters or helpers."""
    try:
        certificates.tls_public_key(certificate).verify(
            signed.signature, _statement(signed.task), ec.ECDSA(hashes.SHA256())
        )
    except InvalidSignature:
        raise ProtocolError("the task of the round is not signed by the server that it names") from None


def opening_of(task: RoundTask, protocol: SummingProtocol) -> Opening:
    """Return the request that opens the summing protocol; raise MalformedMessage if the task has another one."""
    kinds = [kind for kind in protocol.requests if issubclass(kind, Opening)]
    if len(kinds) != 1:
        raise MalformedMessage(f"the protocol '{protocol.name}' has no single opening request")
    return wire.decode(task.opening, kinds[0])


def task_tag(document: bytes) -> str:
    """Return the entity tag by which HTTP tells documents apart."""
    return f'"{hashlib.sha256(document).hexdigest()}"'


def _statement(frame: bytes) -> bytes:
    return _LABEL + frame
