"""ECVRF: the vectors of RFC 9381, an independent reference, alterations, and keys and proofs made to deceive."""

import json
from hashlib import sha512
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.crypto import vrf
from dordis.errors import InputError, InvalidKey, InvalidProof
from tests.references import ecvrf as reference

EXAMPLES = json.loads((Path(__file__).parents[1] / "vectors" / "ecvrf_rfc9381.json").read_text())["examples"]
PRIVATE, ALPHA = bytes(range(32)), b"round 7"
PUBLIC = vrf.public_key(PRIVATE)
PROOF = vrf.prove(PRIVATE, ALPHA)
LOW_ORDER = reference.low_order_encodings()


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def unhex(example: dict, *names: str) -> list[bytes]:
    return [bytes.fromhex(example[name]) for name in names]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example["example"]))
def test_proofs_and_outputs_meet_rfc9381_appendix_b_3(example):
    private, public, alpha, pi, beta = unhex(example, "private", "public", "alpha", "pi", "beta")
    assert vrf.public_key(private) == public
    assert vrf.prove(private, alpha) == pi
    assert vrf.verify(public, alpha, pi) == vrf.proof_to_hash(pi) == beta


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example["example"]))
def test_the_reference_meets_rfc9381_too(example):
    private, public, alpha, pi, beta, H = unhex(example, "private", "public", "alpha", "pi", "beta", "H")
    assert reference.encode(reference.multiply(8, reference.candidate(public, alpha))) == H
    assert reference.prove(private, alpha) == pi
    assert reference.verify(public, alpha, pi) == beta


def test_the_vectors_reach_candidates_outside_the_prime_order_group():
    candidates = [reference.candidate(*unhex(example, "public", "alpha")) for example in EXAMPLES]
    assert any(reference.multiply(reference.Q, point) != reference.IDENTITY for point in candidates)


@pytest.mark.slow
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200))
@settings(max_examples=15, deadline=None)
def test_proofs_and_outputs_are_those_of_the_reference(private, alpha):
    proof = vrf.prove(private, alpha)
    assert proof == reference.prove(private, alpha)
    assert vrf.verify(vrf.public_key(private), alpha, proof) == reference.verify(vrf.public_key(private), alpha, proof)


def test_an_altered_proof_is_refused():
    for place in range(len(PROOF)):
        with pytest.raises(InvalidProof):
            vrf.verify(PUBLIC, ALPHA, flipped(PROOF, place))


def test_an_altered_input_is_refused():
    for alpha in (b"", ALPHA + b"\x00", *(flipped(ALPHA, place) for place in range(len(ALPHA)))):
        with pytest.raises(InvalidProof):
            vrf.verify(PUBLIC, alpha, PROOF)


def test_an_altered_or_another_key_is_refused():
    for place in range(len(PUBLIC)):
        with pytest.raises((InvalidProof, InvalidKey)):
            vrf.verify(flipped(PUBLIC, place), ALPHA, PROOF)
    with pytest.raises(InvalidProof):
        vrf.verify(vrf.public_key(bytes(32)), ALPHA, PROOF)


def test_the_other_s_of_the_same_proof_is_refused():
    other = (int.from_bytes(PROOF[48:], "little") + reference.Q).to_bytes(32, "little")
    for call in (lambda: vrf.verify(PUBLIC, ALPHA, PROOF[:48] + other), lambda: vrf.proof_to_hash(PROOF[:48] + other)):
        with pytest.raises(InvalidProof, match="group order"):
            call()


@pytest.mark.parametrize("point", LOW_ORDER, ids=bytes.hex)
def test_a_key_or_gamma_of_low_order_is_refused(point):
    for call in (lambda: vrf.validate_key(point), lambda: vrf.verify(point, ALPHA, PROOF)):
        with pytest.raises(InvalidKey):
            call()
    for call in (lambda: vrf.verify(PUBLIC, ALPHA, point + PROOF[32:]), lambda: vrf.proof_to_hash(point + PROOF[32:])):
        with pytest.raises(InvalidProof):
            call()


def test_the_forgery_that_a_key_of_low_order_allows_is_refused():
    # With Y and Gamma the identity every nonce k gives a proof (c, s = k) of one and the same output.
    identity = reference.encode(reference.IDENTITY)
    H, k = reference.multiply(8, reference.candidate(identity, ALPHA)), 5
    U, V = reference.multiply(k, reference.BASE), reference.multiply(k, H)
    c = reference.challenge(identity, reference.encode(H), identity, reference.encode(U), reference.encode(V))
    with pytest.raises(InvalidKey):
        vrf.verify(identity, ALPHA, identity + c + k.to_bytes(32, "little"))


def test_a_key_with_a_component_of_low_order_is_refused():
    point = reference.decode(PUBLIC)
    for extra in reference.torsion():
        with pytest.raises(InvalidKey):
            vrf.validate_key(reference.encode(reference.add(point, extra)))


def malleated(extra: reference.Point) -> bytes:
    """Search a nonce whose challenge cancels `extra` added to Gamma: a second proof, which the RFC would accept."""
    x, H = reference.secret_scalar(PRIVATE), reference.multiply(8, reference.candidate(PUBLIC, ALPHA))
    gamma = reference.encode(reference.add(reference.decode(PROOF[:32]), extra))
    U = V = reference.IDENTITY
    for k in range(1, 1000):
        U, V = reference.add(U, reference.BASE), reference.add(V, H)
        c = reference.challenge(PUBLIC, reference.encode(H), gamma, reference.encode(U), reference.encode(V))
        if reference.multiply(reference.little(c) % 8, extra) == reference.IDENTITY:
            return gamma + c + ((k + reference.little(c) * x) % reference.Q).to_bytes(32, "little")
    raise AssertionError("no nonce")


@pytest.mark.parametrize("extra", reference.torsion(), ids=lambda point: reference.encode(point).hex()[:8])
def test_a_second_proof_by_a_component_of_low_order_is_refused(extra):
    proof = malleated(extra)
    assert reference.verify(PUBLIC, ALPHA, proof) == vrf.proof_to_hash(PROOF)
    with pytest.raises(InvalidProof):
        vrf.verify(PUBLIC, ALPHA, proof)


@pytest.mark.parametrize("proof", [PROOF[:32] + bytes(16) + PROOF[48:], PROOF[:48] + bytes(32), PROOF[:32] + bytes(48)])
def test_zero_scalars_are_refused(proof):
    with pytest.raises(InvalidProof):
        vrf.verify(PUBLIC, ALPHA, proof)


@pytest.mark.parametrize("seed", range(20))
def test_only_canonical_points_are_candidates(seed):
    data = sha512(bytes([seed])).digest()[:32]
    assert vrf._is_point(data) == (reference.decode(data) is not None)


@pytest.mark.parametrize("data", LOW_ORDER, ids=bytes.hex)
def test_non_canonical_encodings_are_no_candidates(data):
    assert vrf._is_point(data) == (reference.decode(data) is not None)


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_wrong_lengths_of_keys_are_refused(size):
    for call in (
        lambda: vrf.public_key(bytes(size)),
        lambda: vrf.prove(bytes(size), ALPHA),
        lambda: vrf.generate(lambda _: bytes(size)),
    ):
        with pytest.raises(InputError):
            call()
    with pytest.raises(InvalidKey):
        vrf.verify(bytes(size), ALPHA, PROOF)


@pytest.mark.parametrize("proof", [b"", PROOF[:-1], PROOF + b"\x00"])
def test_wrong_lengths_of_proofs_are_refused(proof):
    for call in (lambda: vrf.verify(PUBLIC, ALPHA, proof), lambda: vrf.proof_to_hash(proof)):
        with pytest.raises(InvalidProof):
            call()


def test_keys_come_from_the_given_entropy():
    assert vrf.generate(lambda size: b"\x05" * size) == b"\x05" * 32
    assert vrf.generate() != vrf.generate()
