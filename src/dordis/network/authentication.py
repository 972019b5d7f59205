"""Authentication of clients: TLS contexts, and two ways for a client to prove its identity.

Mutual TLS: the client shows its certificate in the TLS handshake, and proves that it has the key of the certificate.

Challenge, for load balancers that terminate TLS: the server sends 32 random bytes.  The client returns its certificate,
and a signature of the challenge and of the server certificate that it saw.  The Ed25519 key in the client's
certificate verifies the signature.  A malicious server cannot relay another server's challenge to log in there as this
client: the client signs the certificate of the malicious server, and the other server refuses this signature.

In both ways the client's certificate must be valid and by this federation's authority, and the client must be a member.
"""

import asyncio
import hashlib
import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from cryptography import x509

from dordis.crypto import signature
from dordis.errors import CryptoError, DordisError, InputError, LoginRefused
from dordis.identity import certificates
from dordis.identity.certificates import CertifiedClient, Identity
from dordis.identity.keys import ClientCredentials, Credentials, load_client_credentials, load_server_credentials
from dordis.identity.registry import Admission, Registry, SignedRegistry
from dordis.network.messages import CHALLENGE_BYTES
from dordis.network.sessions import MeteredContext
from dordis.protocol import ClientId

log = logging.getLogger("dordis.network")

ANNOUNCED_DAYS = (30, 7)
"""Days before the expiry of a certificate at which a warning is logged."""
DAY = 24 * 3600.0
"""Seconds between two checks of a certificate's expiry."""
LARGEST_ANSWER = 4096
"""Largest answer to a challenge, in bytes; a certificate has about 700."""
_LABEL = b"dordis/v1/login"

_TLS_ALERTS = {
    "CERTIFICATE_EXPIRED": "a certificate has expired: ask the authority for a new one (dordis keys issue)",
    "BAD_CERTIFICATE": "the other side refuses this certificate: compare the clocks of both machines",
    "UNSUPPORTED_CERTIFICATE": "the certificate is for another purpose: log in with a client's key file",
    "UNKNOWN_CA": "the other side does not know the authority of this certificate: it belongs to another federation",
    "CERTIFICATE_REQUIRED": "the server requires a client certificate, and none was shown: use login = 'mutual'",
    "DID_NOT_RETURN_A_CERTIFICATE": "no client certificate was shown: clients of this server use login = 'mutual'",
    "PROTOCOL_VERSION": "the other side does not speak TLS 1.3",
    "WRONG_VERSION_NUMBER": "the other side does not speak TLS: check that the address is that of a dordis server",
}
_VERIFY_CODES = {
    9: "the certificate is not valid yet: compare the clocks of both machines",
    10: "the certificate has expired: ask the authority for a new one (dordis keys issue)",
    18: "the certificate is self-signed: it belongs to another federation",
    19: "the certificate was signed by another authority: it belongs to another federation",
    20: "the certificate was signed by another authority: it belongs to another federation",
    26: "the certificate is for another purpose: it names a client where a server's is needed, or the other way round",
    62: "the server's certificate is for another host name: use one that it lists, or have it reissued for this one",
    64: "the server's certificate is for another address: use one that it lists, or have it reissued for this one",
}


def server_context(credentials: Credentials, *, mutual: bool = True, required: bool = True) -> ssl.SSLContext:
    """Return the server's TLS context.

    If `mutual`, the server asks for client certificates; if also `required`, it refuses clients without one.
    """
    context = MeteredContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # in a resumed TLS session the client does not show its certificate
    _load(context, credentials)
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        _trust(context, credentials.authority)
    return context


def client_context(
    credentials: ClientCredentials, *, mutual: bool = True, trusted: Path | None = None
) -> ssl.SSLContext:
    """Return a client's TLS context; if `mutual`, the client shows its certificate in the handshake.

    The client trusts server certificates by the authorities in the PEM file `trusted`; if None, by the federation's.
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
            raise InputError(f"cannot read the authorities' certificates in {trusted}: give a PEM file") from None
    return context


def sign_challenge(challenge: bytes, credentials: ClientCredentials, server_certificate: bytes) -> bytes:
    """Return the client's answer to a server's challenge: a signature, followed by the client's certificate (DER).

    The signature covers the challenge, the certificate (DER) that the server showed in TLS, and the client's
    certificate.  Raise LoginRefused if the challenge is malformed, or if `server_certificate` is empty.
    """
    if len(challenge) != CHALLENGE_BYTES or not server_certificate:
        raise LoginRefused("the server's challenge is malformed, or the connection has no TLS")
    certificate = certificates.to_der(credentials.certificate)
    statement = _statement(challenge, server_certificate, certificate)
    return signature.sign(credentials.keys.signing, statement) + certificate


def verify_answer(
    answer: bytes,
    challenge: bytes,
    server_certificates: Collection[bytes],
    authority: x509.Certificate,
    admission: Admission,
    now: datetime,
) -> ClientId:
    """Return the client that answered a challenge; raise LoginRefused if the answer or the client is not accepted.

    `server_certificates` (DER) are those that a client may have seen in TLS: the server's and its load balancers'.
    """
    check_answer_size(answer)
    signed, shown = answer[: signature.SIGNATURE_BYTES], answer[signature.SIGNATURE_BYTES :]
    bound = verify_client_certificate(shown, authority, now)
    check_challenge_signed(bound, signed, challenge, server_certificates, shown)
    return admission.admit(bound)


def verify_certificate(shown: bytes, authority: x509.Certificate, admission: Admission, now: datetime) -> ClientId:
    """Return the client that showed a certificate (DER) in TLS; raise LoginRefused if the client is not admitted."""
    return admission.admit(verify_client_certificate(shown, authority, now))


def verify_client_certificate(shown: bytes, authority: x509.Certificate, now: datetime) -> CertifiedClient:
    """Return the client that a certificate names; raise LoginRefused unless `authority` issued it and it is valid."""
    certificate = certificates.from_der(shown)
    certificates.check_issued_by(certificate, authority)
    certificates.check_purpose(certificate)
    certificates.check_valid_at(certificate, now)
    bound = certificates.certified_client(certificate)
    if bound is None:
        raise LoginRefused("the certificate does not name a client: log in with a client's key file")
    return bound


def check_answer_size(answer: bytes) -> None:
    """Raise LoginRefused if an answer to a challenge is too short for signature and certificate, or too long."""
    if not answer:
        raise LoginRefused("this server asks for an answer to its challenge: join with deployment.login = 'challenge'")
    if not signature.SIGNATURE_BYTES < len(answer) <= LARGEST_ANSWER:
        raise LoginRefused(f"the answer to the challenge is malformed: it has {len(answer)} bytes")


def check_challenge_signed(
    bound: CertifiedClient, signed: bytes, challenge: bytes, server_certificates: Collection[bytes], shown: bytes
) -> None:
    """Raise LoginRefused unless the client `signed` challenge, a server certificate, and its own, `shown`."""
    for server_certificate in server_certificates:
        try:
            signature.verify(bound.identity.signing, _statement(challenge, server_certificate, shown), signed)
        except CryptoError:
            continue
        return
    raise LoginRefused(
        f"client {bound.client} did not sign this challenge with a certificate of this server: if a load balancer "
        "terminates TLS, list its certificate in the server's deployment.balancers"
    )


def explain_tls_error(error: BaseException) -> str:
    """Return one line about why TLS failed and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY_CODES.get(error.verify_code, f"the certificate is not accepted: {error.verify_message}")
    reason = str(error).upper().replace(" ", "_")
    unknown = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return next((why for key, why in _TLS_ALERTS.items() if key in reason), f"TLS failed: {unknown}")


def _statement(challenge: bytes, server_certificate: bytes, certificate: bytes) -> bytes:
    return b"".join((_LABEL, challenge, *(hashlib.sha256(one).digest() for one in (server_certificate, certificate))))


def _load(context: ssl.SSLContext, credentials: Credentials) -> None:
    """Load a party's certificate and key into a context; OpenSSL reads the key from its file."""
    try:
        context.load_cert_chain(credentials.certificate_file, credentials.key_file)
    except (OSError, ssl.SSLError):
        raise InputError(
            f"TLS cannot use {credentials.key_file} with {credentials.certificate_file}: do they belong together?"
        ) from None


def _trust(context: ssl.SSLContext, authority: x509.Certificate) -> None:
    """Make a context trust this authority and no other."""
    context.load_verify_locations(cadata=certificates.to_der(authority))
    context.verify_flags |= ssl.VERIFY_X509_STRICT


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


@dataclass
class ExpiryWatch:
    """Warns that a certificate expires soon: once for each number in ANNOUNCED_DAYS, when fewer days are left.

    `whose` names the party that has the certificate, in the possessive: "the server's".
    """

    whose: str
    now: Callable[[], datetime] = utc_now
    _announced: set[tuple[int, int]] = field(default_factory=set)

    async def watch(self, certificate: Callable[[], x509.Certificate]) -> None:
        """Call `announce` now and then once a day, forever; `certificate` returns the certificate then in use."""
        while True:
            self.announce(certificate())
            await asyncio.sleep(DAY)

    def announce(self, certificate: x509.Certificate) -> None:
        """Log a warning if fewer days are left than a number in ANNOUNCED_DAYS, once per number and certificate."""
        days = certificates.days_left(certificate, self.now())
        due = min((limit for limit in ANNOUNCED_DAYS if days < limit), default=None)
        if due is not None and (certificate.serial_number, due) not in self._announced:
            self._announced.add((certificate.serial_number, due))
            log.warning(
                "%s certificate expires in %d days, on %s: ask the authority for a new one (dordis keys issue), and "
                "send this process SIGHUP when it is in place",
                self.whose,
                days,
                f"{certificate.not_valid_after_utc:%Y-%m-%d}",
            )


@dataclass
class Authenticator:
    """The server's check of a client at log-in: identity, membership in the run, and that its keys are not revoked.

    The signed registry is read again when its file changes, and keys that it lists as revoked are refused from then
    on.  An older version of the registry is ignored.  While the file is missing or damaged, the last version counts.
    """

    credentials: Credentials
    registry: Registry
    """The initial members of the run."""
    signed_registry: Path
    mutual: bool = True
    balancers: Sequence[Path] = ()
    """PEM files with the certificates of load balancers that terminate TLS; read at every log-in."""
    now: Callable[[], datetime] = utc_now
    _newest: dict[tuple[int, int, int], SignedRegistry] = field(default_factory=dict, repr=False)
    """The newest registry; its key in this dictionary is the modification time, size and inode of the registry file."""

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Return the server's TLS context."""
        return server_context(self.credentials, mutual=self.mutual)

    def authenticate(self, certificate: bytes | None, challenge: bytes, answer: bytes) -> ClientId:
        """Return the client that logs in, identified by its TLS certificate or by its answer to the challenge.

        Raise LoginRefused if the client is not admitted.
        """
        helpers = self.registry.helpers
        members = Registry(helpers) if helpers else self.registry  # clients of assisted rounds do not log in
        authority, admission = self.credentials.authority, Admission(members, self._current())
        if self.mutual:
            return verify_certificate(certificate or b"", authority, admission, self.now())
        own = [certificates.to_der(self.credentials.certificate)]
        own += [certificates.to_der(certificates.load_certificate(path)) for path in self.balancers]
        return verify_answer(answer, challenge, own, authority, admission, self.now())

    def admit_visitor(self, certificate: bytes | None) -> ClientId:
        """Return the visiting client that showed this certificate in TLS; raise LoginRefused if it is not admitted."""
        admission = Admission(self.registry, self._current())
        return verify_certificate(certificate or b"", self.credentials.authority, admission, self.now())

    def revoked_members(self) -> frozenset[ClientId]:
        """Return the initial clients of the run whose keys were revoked or replaced since the run began."""
        return self._revoked_in(self.registry)

    def revoked_helpers(self) -> frozenset[ClientId]:
        """Return the helpers of the run whose keys were revoked or replaced since the run began."""
        return self._revoked_in(self.registry.helpers)

    def _revoked_in(self, parties: Mapping[ClientId, Identity]) -> frozenset[ClientId]:
        revoked = self._current().revoked
        return frozenset(u for u, identity in parties.items() if identity.signing.hex() in revoked)

    def reload_certificate(self) -> None:
        """Read the server's key and certificate again for new connections; raise InputError if they cannot be used."""
        credentials = load_server_credentials(self.credentials.key_file, self.now())
        _load(self.context, credentials)
        self.credentials = credentials

    def _current(self) -> SignedRegistry:
        """Return the newest registry that was read; read the registry file again if it has changed."""
        try:
            status = self.signed_registry.stat()
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            if version in self._newest:
                return self._newest[version]
            read = SignedRegistry.load(self.signed_registry, self.credentials.authority)
        except (OSError, InputError) as error:
            if not self._newest:
                raise InputError(f"cannot read the registry {self.signed_registry}: {error}") from None
            newest = next(iter(self._newest.values()))
            log.warning("the registry cannot be read, and its version %d stays in force: %s", newest.version, error)
            return newest
        newest = max([read, *self._newest.values()], key=lambda registry: registry.version)
        self._newest.clear()
        self._newest[version] = newest
        return newest


@dataclass(frozen=True)
class LoginCredentials:
    """A client's credentials for the log-in, by its certificate in TLS if `mutual`, else by signing a challenge."""

    credentials: ClientCredentials = field(repr=False)
    mutual: bool = True
    trusted: Path | None = None
    """PEM file with the authorities that certify a load balancer; if None, the federation's authority is trusted."""

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Return the client's TLS context."""
        return client_context(self.credentials, mutual=self.mutual, trusted=self.trusted)

    @property
    def certificate(self) -> x509.Certificate:
        """Return the client's certificate."""
        return self.credentials.certificate

    def reload(self) -> "LoginCredentials":
        """Return the credentials, read again from their files; raise InputError if they have other keys than before."""
        read = load_client_credentials(self.credentials.key_file, utc_now())
        if read.client != self.credentials.client or read.keys.identity() != self.credentials.keys.identity():
            raise InputError(f"{self.credentials.key_file} has other keys than before: start the client again")
        return replace(self, credentials=read)

    def answer(self, challenge: bytes, server_certificate: bytes) -> bytes:
        """Return the answer to a challenge; empty with mutual TLS, which has proved the client's identity already."""
        return b"" if self.mutual else sign_challenge(challenge, self.credentials, server_certificate)


class ServerContact(ABC):
    """Base class of `Participant` and `Visitor`: a client that stays in contact with a server for a whole run.

    The client's certificate can be replaced during the run (`reload`).  A reason why connections fail is logged once,
    until a connection succeeds or fails for another reason.
    """

    def __init__(
        self, credentials: LoginCredentials, events: Callable[[str], None], expiry: ExpiryWatch | None = None
    ) -> None:
        self.credentials, self.events = credentials, events
        self._expiry, self._event = expiry or ExpiryWatch("this client's"), ""

    async def stay(self, once: bool = False, follow: bool = False) -> None:
        """Stay in contact until the run is over; with `follow`, also in the server's next runs.

        With `once`, a connected client ends after one connection, a visiting client after one accepted contribution.
        """
        watch = asyncio.ensure_future(self._expiry.watch(lambda: self.credentials.certificate))
        try:
            await self._stay(once, follow)
        finally:
            watch.cancel()

    @abstractmethod
    async def _stay(self, once: bool, follow: bool) -> None: ...

    def reload(self) -> None:
        """Read key and certificate again for the next connection; if they cannot be read, keep the present ones."""
        try:
            self.credentials = self.credentials.reload()
        except DordisError as error:
            log.warning("the certificate was not read again: %s", error)
        else:
            log.info("the certificate was read again, for the next connection")

    def _note(self, event: str) -> None:
        """Log `event`, the reason why this client has no contact, unless it was the latest logged reason."""
        if event != self._event:
            log.warning("%s", event)
            self.events(event)
        self._event = event

    def _note_contact(self) -> None:
        self._event = ""
        self.events("")
