"""Who plays: eight clients, two more, an outsider and a stranger; and parameters for them, good and forged."""

import hashlib
import secrets
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
import numpy as np

from dordis.federation.registry import Keys, Registry
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId
from dordis.protocols.parameters import MALICIOUS, Parameters, agree_on, table_hash
from dordis.protocols.secagg import SecAggClient
from dordis.protocols.secagg.consent import Owner

COMPLETE, SPARSE = "complete", "SecAgg+"
BOTH = (COMPLETE, SPARSE)
RUN = bytes(range(32))
IDS = tuple(ClientId(u) for u in (3, 5, 8, 13, 21, 34, 55, 89))
SPARE = tuple(ClientId(u) for u in (377, 610))
"""Two more, for a larger round."""
OUTSIDER = ClientId(144)
"""Registered, but not among the clients of the round."""
STRANGER = ClientId(233)
"""Not even registered."""


@cache
def keys_of(u: ClientId) -> Keys:
    """Return the private keys of a client in this play: they protect nothing."""
    return Keys(*(hashlib.sha256(b"dordis/adversary/%b/%d" % (use, u)).digest() for use in (b"signing", b"vrf")))


@cache
def registry() -> Registry:
    """Return the registry: everyone but the stranger."""
    return Registry({u: keys_of(u).identity() for u in (*IDS, *SPARE, OUTSIDER)})


@cache
def signing_keys() -> dict[ClientId, bytes]:
    """Return everyone's public signing keys."""
    return registry().signing_keys()


def agreed(graph: str, **changes: Any) -> Parameters:
    """Return good parameters for eight clients: T = 3; T_C = 1, or on SecAgg+ 0, where k = 6 and t_k = 5."""
    settings: dict[str, Any] = {
        "run": RUN,
        "index": 7,
        "clients": IDS,
        "threshold": 5,
        "tolerance": 3,
        "colluders": 1,
        "bits": 16,
        "ends": [8],
        "variances": [64] * len(changes.get("ends", [8])),
        "mode": MALICIOUS,
        "beacon": hashlib.sha256(b"published randomness").digest(),
    }
    if graph == SPARSE:
        settings |= {"degree": 6, "quorum": 5, "colluders": 0}
    return agree_on(**(settings | changes))


def forged(parameters: Parameters, **changes: Any) -> Parameters:
    """Change parameters as an adversary would: with the right hash of the noise tables, and no rule checked."""
    draft = msgspec.structs.replace(parameters, **changes)
    return msgspec.structs.replace(draft, tables=table_hash(draft))


class Trusting:
    """An owner who consents to everything."""

    def consent(self, parameters: Parameters, proofs: Mapping[int, bytes]) -> None:
        """Consent."""

    def attend(self, parameters: Parameters, machine: bytes) -> None:
        """Count nothing."""


def honest_client(u: ClientId, vector: Vector, owner: Owner | None = None, **options: Any) -> SecAggClient:
    """Make a client with keys, the registry and an owner."""
    return SecAggClient(
        u, vector, owner=owner or Trusting(), signing=keys_of(u).signing, registry=signing_keys(), **options
    )


def random_vector(parameters: Parameters) -> Vector:
    """Draw an input."""
    drawn = np.frombuffer(secrets.token_bytes(4 * parameters.dim), np.uint32)
    return drawn & np.uint32(2**parameters.bits - 1)
