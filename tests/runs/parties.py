"""A federation on the disk: an authority, clients and a server, made as `dordis keys` makes them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from dordis.durable_files import write_atomically
from dordis.identity.authority import Authority, IssuedCertificate, new_request, read_request
from dordis.identity.certificates import new_tls_key
from dordis.identity.keys import Keys, PrivateKeys, save_keys

NOW = datetime(2030, 5, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(days=400)
"""When every certificate of `NOW` has expired."""


def authority_at(path: Path, now: datetime = NOW) -> Authority:
    return Authority.create(path, path.name, now)


def drawn() -> PrivateKeys:
    return PrivateKeys(new_tls_key(), Keys.generate())


def joined(authority: Authority, key: Path, private: PrivateKeys | None = None, hosts: tuple[str, ...] = ()) -> Path:
    """Make the keys of a party, have them approved, and put the certificate beside them."""
    private = private or (PrivateKeys(new_tls_key(), None) if hosts else drawn())
    save_keys(key, private)
    approved(authority, key, new_request(key.stem, private, hosts))
    return key


def approved(authority: Authority, key: Path, request: bytes) -> IssuedCertificate:
    made = authority.approve(read_request(request))
    write_atomically(key.with_suffix(".cert"), made.pem)
    return made
