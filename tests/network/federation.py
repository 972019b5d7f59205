"""An authority, a server and clients with files of their own, for tests of the network."""

from datetime import UTC, datetime
from pathlib import Path

from dordis.federation.authority import REGISTRY_FILE, Authority
from tests.federation.parties import joined


def enrol(folder: Path, clients: int) -> Path:
    """Make a federation: `server.key`, `c1.key`, .., their certificates beside them, and the signed registry."""
    authority = Authority.create(folder / "authority", "tests", datetime.now(UTC))
    joined(authority, folder / "server.key", hosts=("localhost", "127.0.0.1"))
    for u in range(1, clients + 1):
        joined(authority, folder / f"c{u}.key")
    publish(folder)
    return folder


def publish(folder: Path) -> None:
    """Give the server and the clients the registry that the authority signed last."""
    (folder / "registry.json").write_bytes((folder / "authority" / REGISTRY_FILE).read_bytes())
