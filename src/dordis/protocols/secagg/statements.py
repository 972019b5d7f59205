"""The statements that clients sign in the malicious mode; each has its own tag and names round and parameters."""

import hashlib
from collections.abc import Mapping

from dordis.crypto.suite import Suite
from dordis.errors import ProtocolError
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.secagg.messages import Advertisement, EncryptedShares

Registry = Mapping[ClientId, bytes]
"""The public signing keys of all clients that may take part; clients do not get them from the server."""


def keys(parameters: CohortParameters, u: ClientId, advertisement: Advertisement) -> bytes:
    """Return the statement of client u: these are my keys and token hashes."""
    return _statement(b"keys", parameters, _id(u), advertisement.channel, advertisement.masking, advertisement.tokens)


def shares(parameters: CohortParameters, u: ClientId, promised: EncryptedShares) -> bytes:
    """Return the statement of client u: these are my commitments, ciphertexts and hashes of shares."""
    sent = hashlib.sha256()
    for v, ciphertext in sorted(promised.ciphertexts.items()):
        sent.update(_id(v) + hashlib.sha256(ciphertext).digest())
    return _statement(b"shares", parameters, _id(u), promised.commitments, sent.digest(), promised.hashes)


def survivors(parameters: CohortParameters, chunk: int, bitmap: bytes) -> bytes:
    """Return the statement of a client: these are the survivors (U3), and I help to unmask no other sum."""
    return _statement(b"survivors", parameters, _id(chunk), bitmap)


def verify(suite: Suite, registry: Registry, u: ClientId, statement: bytes, signed: bytes) -> None:
    """Raise unless client u is registered and `signed` is its valid signature on the statement."""
    if u not in registry:
        raise ProtocolError(f"client {u} is not in the registry")
    suite.signature.verify(registry[u], statement, signed)


def _statement(tag: bytes, parameters: CohortParameters, *parts: bytes) -> bytes:
    everything = (b"dordis/v1/statement/" + tag, parameters.round, parameters.digest, *parts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in everything)


def _id(number: int) -> bytes:
    return number.to_bytes(8, "big")
