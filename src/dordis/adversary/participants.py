"""Who takes part: eight clients, two more, an outsider, a stranger and their owners; parameters, good and forged.

Honest clients are made here and nowhere else.
"""

import hashlib
import secrets
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import msgspec
import numpy as np

from dordis.federation.beacon import SeedBeacon
from dordis.federation.owner import Owner
from dordis.federation.participation import MemoryParticipation, Participation
from dordis.federation.policy import Policy
from dordis.federation.registry import Keys, Registry
from dordis.federation.selection import NO_PROOFS, Proofs, Selected, Selection
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId, Journal
from dordis.protocols.delivery import DeliveryClient
from dordis.protocols.distributed_dp import DistributedDP
from dordis.protocols.parameters import MALICIOUS, Parameters, agree_on, table_hash
from dordis.protocols.secagg import SecAggClient
from dordis.protocols.secagg.state import SecAggState

Clients = Collection[ClientId]
COMPLETE, SPARSE = "complete", "SecAgg+"
BOTH = (COMPLETE, SPARSE)
IDS = tuple(ClientId(u) for u in (3, 5, 8, 13, 21, 34, 55, 89))
SPARE = tuple(ClientId(u) for u in (377, 610))
"""Two more, for a larger round."""
OUTSIDER = ClientId(144)
"""Registered, but not among the clients of the round."""
STRANGER = ClientId(233)
"""Not even registered."""
RUN, INDEX = bytes(range(32)), 7
NEW_RUN = bytes(reversed(RUN))
EARLIER = RUN + (INDEX - 1).to_bytes(8, "big")
"""The id of the round before."""
BEACON = SeedBeacon(bytes(32))


@cache
def keys_of(u: ClientId) -> Keys:
    """Return the private keys of a client: they protect nothing."""
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
        "index": INDEX,
        "clients": IDS,
        "threshold": 5,
        "tolerance": 3,
        "colluders": 1,
        "bits": 16,
        "ends": [8],
        "variances": [64] * len(changes.get("ends", [8])),
        "mode": MALICIOUS,
        "beacon": BEACON.value(INDEX),
    }
    if graph == SPARSE:
        settings |= {"degree": 6, "quorum": 5, "colluders": 0}
    return agree_on(**(settings | changes))


def forged(parameters: Parameters, **changes: Any) -> Parameters:
    """Change parameters as an adversary would: with the right hash of the noise tables, and no rule checked."""
    draft = msgspec.structs.replace(parameters, **changes)
    return draft if "tables" in changes else msgspec.structs.replace(draft, tables=table_hash(draft))


def words(*numbers: int) -> bytes:
    """Write numbers as parameters do."""
    return b"".join(number.to_bytes(8, "little") for number in numbers)


class TrustingOwner:
    """An owner who consents to everything."""

    def consent(self, parameters: Parameters, proofs: Mapping[int, bytes]) -> None:
        """Consent."""

    def attend(self, parameters: Parameters, machine: bytes) -> None:
        """Count nothing."""


class AnySelection:
    """A strategy that takes every U as it comes: for attacks on something else than the selection."""

    def select(self, index: int, available: Clients, proofs: Proofs = NO_PROOFS) -> Selected:
        """Take everyone."""
        return Selected(tuple(sorted(available)))

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Refuse nothing."""


def allowing(**lines: Any) -> Policy:
    """Return a policy that allows everything here but for these lines."""
    return Policy(**({"mechanisms": frozenset({"none"})} | lines))


def careful_owner(
    me: ClientId,
    policy: Policy | None = None,
    selection: Selection | None = None,
    participation: Participation | None = None,
) -> Owner:
    """Return an owner of the real kind, who insists on what is given."""
    policy = policy or allowing(colluders=0)
    return Owner(me, policy, selection or AnySelection(), participation or MemoryParticipation(), BEACON)


def honest_client(
    u: ClientId, vector: Vector, journal: Journal | None, owner: Owner | None = None, state: SecAggState | None = None
) -> SecAggClient:
    """Make a client with keys, the registry and an owner; with a state, as it was when the state was copied."""
    insists, signing = owner or TrustingOwner(), keys_of(u).signing
    return SecAggClient(u, vector, journal, state, owner=insists, signing=signing, registry=signing_keys())


def honest_receiver(parameters: Parameters) -> DeliveryClient:
    """Make a client that waits for the sum of a round."""
    return DeliveryClient(DistributedDP.of(parameters, parameters.dim))


def random_vector(parameters: Parameters) -> Vector:
    """Draw an input."""
    drawn = np.frombuffer(secrets.token_bytes(4 * parameters.dim), np.uint32)
    return drawn & np.uint32(2**parameters.bits - 1)
