"""Who is let in: the two log-ins of `login`, as a server and a client of the network use them."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from dordis.federation import certificates
from dordis.federation.identity import ClientCredentials, Credentials
from dordis.federation.membership import Admission, SignedRegistry
from dordis.federation.registry import Registry
from dordis.network import login
from dordis.protocol import ClientId


def utc() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class FederationDoor:
    """Let members of a run in, by mutual TLS, or by the answer to a challenge.

    The registry that the authority signed last is read again when its file changes: whoever it revokes is out, and an
    older one in its place brings nobody back.
    """

    credentials: Credentials
    registry: Registry
    """The members that the run began with."""
    signed: Path
    mutual: bool = True
    balancers: tuple[Path, ...] = ()
    """PEM files with the certificates of load balancers that end TLS; they are read for every log-in."""
    now: Callable[[], datetime] = utc
    _read: dict[tuple[int, int, int], SignedRegistry] = field(default_factory=dict, repr=False)

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Return the TLS of the server."""
        return login.server_context(self.credentials, mutual=self.mutual)

    def admit(self, certificate: bytes | None, challenge: bytes, answer: bytes) -> ClientId:
        """Return the client; whoever is unknown, revoked or of another federation is refused."""
        authority, admission = self.credentials.authority, Admission(self.registry, self._current())
        if self.mutual:
            return login.verify_certificate(certificate or b"", authority, admission, self.now())
        own = [certificates.to_der(self.credentials.certificate)]
        own += [certificates.to_der(certificates.load_certificate(path)) for path in self.balancers]
        return login.verify_answer(answer, challenge, own, authority, admission, self.now())

    def revoked(self) -> frozenset[ClientId]:
        """Return the clients of the run that were revoked since it began."""
        gone = self._current().revoked
        return frozenset(u for u, identity in self.registry.items() if identity.signing.hex() in gone)

    def _current(self) -> SignedRegistry:
        """Return the registry as it was signed last; it is read again when the file has changed."""
        status = self.signed.stat()
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen not in self._read:
            read = SignedRegistry.load(self.signed, self.credentials.authority)
            newest = max([read, *self._read.values()], key=lambda registry: registry.version)
            self._read.clear()
            self._read[seen] = newest
        return self._read[seen]


@dataclass(frozen=True)
class FederationPass:
    """What a member shows: its certificate in TLS, or its answer to a challenge."""

    credentials: ClientCredentials = field(repr=False)
    mutual: bool = True
    trusted: Path | None = None

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Return the TLS of the client."""
        return login.client_context(self.credentials, mutual=self.mutual, trusted=self.trusted)

    def answer(self, challenge: bytes, server_certificate: bytes) -> bytes:
        """Answer the challenge, where TLS has not proved it already."""
        return b"" if self.mutual else login.answer(challenge, self.credentials, server_certificate)
