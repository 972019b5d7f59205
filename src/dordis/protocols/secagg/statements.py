"""What is signed against a malicious server: each statement has its own tag and names the round and its parameters."""

import hashlib
from collections.abc import Mapping

from dordis.crypto.suite import Suite
from dordis.errors import ProtocolError
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.secagg.messages import Advertisement, EncryptedShares

Registry = Mapping[ClientId, bytes]
"""The public signing key of every client that may take part, known before and by other ways than the server."""


def keys(parameters: CohortParameters, u: ClientId, advertisement: Advertisement) -> bytes:
    """State: these are my keys and token hashes."""
    return _statement(b"keys", parameters, _id(u), advertisement.channel, advertisement.masking, advertisement.tokens)


def shares(parameters: CohortParameters, u: ClientId, promised: EncryptedShares) -> bytes:
    """State: these are my commitments, my ciphertexts and the hashes of all my shares."""
    sent = hashlib.sha256()
    for v, ciphertext in sorted(promised.ciphertexts.items()):
        sent.update(_id(v) + hashlib.sha256(ciphertext).digest())
    return _statement(b"shares", parameters, _id(u), promised.commitments, sent.digest(), promised.hashes)


def survivors(parameters: CohortParameters, chunk: int, bitmap: bytes) -> bytes:
    """State: I have seen this U3, and will answer for no other."""
    return _statement(b"survivors", parameters, _id(chunk), bitmap)


def verify(suite: Suite, registry: Registry, u: ClientId, statement: bytes, signed: bytes) -> None:
    """Check a client's signature; a client that is not registered can sign nothing."""
    if u not in registry:
        raise ProtocolError(f"client {u} is not in the registry")
    suite.signature.verify(registry[u], statement, signed)


def _statement(tag: bytes, parameters: CohortParameters, *parts: bytes) -> bytes:
    everything = (b"dordis/v1/statement/" + tag, parameters.round, parameters.digest, *parts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in everything)


def _id(number: int) -> bytes:
    return number.to_bytes(8, "big")
