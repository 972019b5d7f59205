"""A federation on the disk: an authority, clients and a server, made as `dordis keys` makes them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from dordis.federation.authority import Approved, Authority
from dordis.federation.certificates import new_tls_key
from dordis.federation.durable import replace
from dordis.federation.identity import PrivateKeys, save_keys
from dordis.federation.registry import Keys
from dordis.federation.requests import new_request, read_request

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


def approved(authority: Authority, key: Path, request: bytes) -> Approved:
    made = authority.approve(read_request(request))
    replace(key.with_suffix(".cert"), made.pem)
    return made
