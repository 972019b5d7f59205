"""Log-in: TLS contexts, and who is at the other end, by a certificate or by the answer to a challenge.

Two ways.  Mutual TLS: the client's certificate is shown in the TLS handshake, and its TLS key proves it.  One-way TLS
with a challenge, for load balancers that end TLS: the server sends 32 random bytes, and the client returns its
certificate and a signature, by the Ed25519 key that is bound in it, of the challenge and of the server's certificate
as the client saw it.  A server that passes a challenge on to another one gains nothing: its own certificate is signed.

Either way the certificate must be of this federation and valid, and its client a member that was not revoked.
"""

import hashlib
import secrets
import ssl
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path

from cryptography import x509

from dordis.crypto import signature
from dordis.errors import CryptoError, InputError, LoginRefused
from dordis.federation import certificates
from dordis.federation.certificates import Bound
from dordis.federation.identity import ClientCredentials, Credentials
from dordis.federation.membership import Admission
from dordis.protocol import ClientId

CHALLENGE_BYTES = 32
LARGEST_ANSWER = 4096
"""Bytes; a certificate has about 700."""
_LABEL = b"dordis/v1/login"

_WHY = {
    "CERTIFICATE_EXPIRED": "a certificate has expired: ask the authority for a new one (dordis keys issue)",
    "NOT_YET_VALID": "a certificate is not valid yet: compare the clocks of both machines",
    "UNKNOWN_CA": "the other side does not know the authority of this certificate: it is of another federation",
    "CERTIFICATE_REQUIRED": "the server asks for a certificate, and none was shown: log in by mutual TLS",
    "PROTOCOL_VERSION": "the other side does not speak TLS 1.3",
    "WRONG_VERSION_NUMBER": "the other side does not speak TLS: is the address that of a server of dordis?",
}
_VERIFY = {
    9: "the certificate is not valid yet: compare the clocks of both machines",
    10: "the certificate has expired: ask the authority for a new one (dordis keys issue)",
    18: "the certificate is self-signed: it is of another federation",
    19: "the certificate was signed by another authority: it is of another federation",
    20: "the certificate was signed by another authority: it is of another federation",
    26: "the certificate is for another purpose: a client's does not serve a server",
    62: "the server's certificate is for another host name: use one that it lists, or have it issued for this one",
    64: "the server's certificate is for another address: use one that it lists, or have it issued for this one",
}


def server_context(credentials: Credentials, *, mutual: bool = True, required: bool = True) -> ssl.SSLContext:
    """Return the TLS of a server; with `mutual`, clients show certificates, or may, if that is not `required`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a resumed connection would not show its certificate again
    _load(context, credentials)
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        _trust(context, credentials.authority)
    return context


def client_context(
    credentials: ClientCredentials, *, mutual: bool = True, trusted: Path | None = None
) -> ssl.SSLContext:
    """Return the TLS of a client: it trusts servers of its federation, or those of the authorities in a file.

    Without `mutual` its certificate is not shown in the handshake.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if mutual:
        _load(context, credentials)
    if trusted is None:
        _trust(context, credentials.authority)
    else:
        try:
            context.load_verify_locations(trusted)
        except (OSError, ssl.SSLError):
            raise InputError(f"cannot read certificates of authorities from {trusted}: give a PEM file") from None
    return context


def challenge(entropy: Callable[[int], bytes] = secrets.token_bytes) -> bytes:
    """Draw a challenge, for one answer on one connection."""
    return entropy(CHALLENGE_BYTES)


def answer(challenge: bytes, credentials: ClientCredentials, server_certificate: bytes) -> bytes:
    """Answer a challenge; `server_certificate` is what TLS showed, in DER: `getpeercert(binary_form=True)`."""
    if len(challenge) != CHALLENGE_BYTES or not server_certificate:
        raise LoginRefused("the server's challenge is malformed, or came without TLS")
    certificate = certificates.to_der(credentials.certificate)
    statement = _statement(challenge, server_certificate, certificate)
    return signature.sign(credentials.keys.signing, statement) + certificate


def verify_answer(
    answered: bytes,
    challenge: bytes,
    server_certificates: Collection[bytes],
    authority: x509.Certificate,
    admission: Admission,
    now: datetime,
) -> ClientId:
    """Return the client that answered a challenge.

    `server_certificates` are those that clients may see, in DER: the server's own, or that of a load balancer.
    """
    check_answer_size(answered)
    signed, shown = answered[: signature.SIGNATURE_BYTES], answered[signature.SIGNATURE_BYTES :]
    bound = bound_in(shown, authority, now)
    check_answered(bound, signed, challenge, server_certificates, shown)
    return admission.admit(bound)


def verify_certificate(shown: bytes, authority: x509.Certificate, admission: Admission, now: datetime) -> ClientId:
    """Return the client whose certificate TLS has verified, in DER: `getpeercert(binary_form=True)`."""
    return admission.admit(bound_in(shown, authority, now))


def bound_in(shown: bytes, authority: x509.Certificate, now: datetime) -> Bound:
    """Return whom a certificate speaks for, if it is a client's, of this federation and valid."""
    certificate = certificates.from_der(shown)
    certificates.check_issued_by(certificate, authority)
    certificates.check_purpose(certificate)
    certificates.check_valid_at(certificate, now)
    bound = certificates.bound_in(certificate)
    if bound is None:
        raise LoginRefused("this certificate does not name a client")
    return bound


def check_answer_size(answered: bytes) -> None:
    """An answer has room for a signature and a certificate, and not for more."""
    if not signature.SIGNATURE_BYTES < len(answered) <= LARGEST_ANSWER:
        raise LoginRefused("the answer to the challenge is malformed")


def check_answered(
    bound: Bound, signed: bytes, challenge: bytes, server_certificates: Collection[bytes], shown: bytes
) -> None:
    """The client's signing key signed this challenge, for a certificate of this server."""
    for server_certificate in server_certificates:
        try:
            signature.verify(bound.identity.signing, _statement(challenge, server_certificate, shown), signed)
        except CryptoError:
            continue
        return
    raise LoginRefused(
        f"client {bound.client} did not sign this challenge for a certificate of this server: if a load balancer ends "
        "TLS, the server must be told its certificate"
    )


def check_absent(client: ClientId, present: Collection[ClientId]) -> None:
    """No other connection is logged in as this client."""
    if client in present:
        raise LoginRefused(f"client {client} is logged in already, from elsewhere: one identity is one client")


def explain(error: ssl.SSLError) -> str:
    """Say in one line why TLS failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY.get(error.verify_code, f"the certificate is not accepted: {error.verify_message}")
    reason = str(error).upper().replace(" ", "_")
    return next((why for key, why in _WHY.items() if key in reason), f"TLS failed: {error}")


def _statement(challenge: bytes, server_certificate: bytes, certificate: bytes) -> bytes:
    return b"".join((_LABEL, challenge, *(hashlib.sha256(one).digest() for one in (server_certificate, certificate))))


def _load(context: ssl.SSLContext, credentials: Credentials) -> None:
    """Show the certificate of a party; its key is read by OpenSSL from its file."""
    try:
        context.load_cert_chain(credentials.certificate_file, credentials.key_file)
    except (OSError, ssl.SSLError):
        raise InputError(f"TLS cannot use {credentials.key_file} and {credentials.certificate_file}") from None


def _trust(context: ssl.SSLContext, authority: x509.Certificate) -> None:
    """Trust one authority, and no other."""
    context.load_verify_locations(cadata=certificates.to_der(authority))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
