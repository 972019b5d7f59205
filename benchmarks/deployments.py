"""Set-up for measurements of deployments: processes, and a federation with its own keys and certificates."""

import contextlib
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from dordis.identity.authority import REGISTRY_FILE, Authority, new_request, read_request
from dordis.identity.certificates import new_tls_key
from dordis.identity.keys import Keys, PrivateKeys, save_keys

HANG = 3600.0
"""Seconds after which something that never comes is a failure."""
FORK = multiprocessing.get_context("fork")


@contextlib.contextmanager
def federation(clients: int, hosts: Sequence[str] = ("localhost",)) -> Iterator[Path]:
    """Make keys and certificates in a folder of their own."""
    folder = Path(tempfile.mkdtemp(prefix="dordis-benchmark-"))
    authority = Authority.create(folder / "authority", "benchmark", datetime.now(UTC))
    for name in ("server", *(f"c{u}" for u in range(1, clients + 1))):
        private = PrivateKeys(new_tls_key(), None if name == "server" else Keys.generate())
        save_keys(folder / f"{name}.key", private)
        asked = new_request(name, private, hosts if name == "server" else ())
        (folder / f"{name}.cert").write_bytes(authority.approve(read_request(asked)).pem)
    (folder / "registry.json").write_bytes((folder / "authority" / REGISTRY_FILE).read_bytes())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
