"""Signed statements bind kind, round, client and content; signatures of unregistered clients are refused."""

import pytest

from dordis.crypto import signature
from dordis.crypto.suite import DEFAULT
from dordis.errors import InvalidSignature, ProtocolError
from dordis.protocols.cohort import agree_on
from dordis.protocols.secagg import statements
from dordis.protocols.secagg.messages import Advertisement, EncryptedShares
from tests.protocols.rounds import public_key, signing_key

P, OTHER_ROUND = (
    agree_on(run=bytes(32), index=index, clients=range(1, 6), threshold=3, tolerance=1, bits=13, ends=[5])
    for index in (0, 1)
)
KEYS = Advertisement(b"c" * 32, b"m" * 32, b"t" * 32)
SHARES = EncryptedShares({2: b"x", 3: b"y"}, b"k" * 32, b"h" * 16)


def test_kind_round_client_and_content_are_bound():
    stated = [
        statements.keys(P, 1, KEYS),
        statements.keys(OTHER_ROUND, 1, KEYS),
        statements.keys(P, 2, KEYS),
        statements.keys(P, 1, Advertisement(b"c" * 32, b"m" * 33, b"t" * 31)),
        statements.shares(P, 1, SHARES),
        statements.shares(P, 1, EncryptedShares({2: b"y", 3: b"x"}, b"k" * 32, b"h" * 16)),
        statements.shares(P, 1, EncryptedShares({2: b"x", 3: b"y"}, b"k" * 32, b"i" * 16)),
        statements.survivors(P, 0, P.pack([1, 2, 3])),
        statements.survivors(P, 1, P.pack([1, 2, 3])),
        statements.survivors(P, 0, P.pack([1, 2, 4])),
    ]
    assert len({*stated}) == len(stated)


def test_a_signature_is_accepted_from_its_registered_signer_only():
    statement = statements.survivors(P, 0, P.pack([1, 2, 3]))
    signed, registry = signature.sign(signing_key(1), statement), {1: public_key(1), 2: public_key(2)}
    statements.verify(DEFAULT, registry, 1, statement, signed)
    with pytest.raises(InvalidSignature):
        statements.verify(DEFAULT, registry, 2, statement, signed)
    with pytest.raises(InvalidSignature):
        statements.verify(DEFAULT, registry, 1, statement + b"x", signed)
    with pytest.raises(ProtocolError, match="not in the registry"):
        statements.verify(DEFAULT, registry, 3, statement, signed)
