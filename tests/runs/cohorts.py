"""Clients with fixed keys, registries of them, and rounds to verify."""

from functools import cache

from dordis.crypto import kdf
from dordis.identity.certificates import Identity
from dordis.identity.keys import Keys
from dordis.identity.registry import Registry
from dordis.protocols.cohort import agree_on
from dordis.protocols.parameters import MALICIOUS, Parameters
from dordis.rounds.invitation import Invite, Terms
from dordis.rounds.model import ModelBytes

RUN, OTHER_RUN = bytes(range(32)), bytes(range(1, 33))


@cache
def keys_of(client: int) -> Keys:
    fixed = kdf.expand(b"keys of tests/federation", b"%d" % client, 64)
    return Keys(fixed[:32], fixed[32:])


@cache
def identity_of(client: int) -> Identity:
    return keys_of(client).identity()


@cache
def registry_of(*clients: int) -> Registry:
    return Registry({u: identity_of(u) for u in clients})


def a_round(clients, index=0, run=RUN, mode=MALICIOUS, beacon=b"") -> Parameters:
    """Return parameters that are good but for, perhaps, their clients."""
    everyone = len(clients)
    return agree_on(
        run=run,
        index=index,
        clients=clients,
        threshold=everyone,
        colluders=0,
        bits=16,
        ends=[1],
        mode=mode,
        beacon=beacon,
    )


def an_invite(index=0, run=RUN, mode=MALICIOUS, registry=b"") -> Invite:
    """Return an invitation to such a round; an empty model is enough for it."""
    model = ModelBytes.from_numbers(())
    return Invite(
        round=run + index.to_bytes(8, "big"),
        number=index + 1,
        protocol="secagg",
        registry=registry,
        dim=1,
        terms=Terms.from_parameters(a_round(range(1, 8), index, run, mode)),
        model=model.digest,
        model_bytes=0,
        dtype=model.dtype,
    )
