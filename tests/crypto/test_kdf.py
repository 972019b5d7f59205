"""Labels, derivations and commitments: known answers, separation of every argument, refusals."""

import json
from pathlib import Path

import pytest

from dordis.crypto import kdf
from dordis.errors import InputError
from tests.vectors import make_derivations

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "derivations.json").read_text())
SECRET, PARAMETERS, ROUND = (bytes.fromhex(VECTORS[name]) for name in ("secret", "parameter_hash", "round_id"))


@pytest.mark.parametrize("case", VECTORS["derivations"], ids=lambda case: case["label"])
def test_derivations_meet_the_known_answers(case):
    label = kdf.label(case["use"], ROUND, case["chunk"], case["sender"], case["receiver"])
    assert label.decode() == case["label"]
    assert kdf.derive(SECRET, label, PARAMETERS, case["length"]).hex() == case["derived"]
    assert kdf.commit(label, PARAMETERS, SECRET).hex() == case["commitment"]


@pytest.mark.parametrize("case", VECTORS["expansions"], ids=lambda case: case["info"])
def test_expansions_meet_the_known_answers(case):
    assert kdf.expand(SECRET, case["info"].encode(), case["length"]).hex() == case["expanded"]


def test_the_committed_answers_are_those_of_the_standard_library():
    assert make_derivations.derivations() == VECTORS


def test_expand_meets_rfc5869_case_3():
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    assert kdf.expand(b"\x0b" * 22, b"", 42).hex() == expected


def test_every_argument_of_a_label_changes_it():
    labels = {
        kdf.label(use, round_id, chunk, sender, receiver)
        for use in ("mask", "mask-b")
        for round_id in (b"\x01", b"\x01\x02")
        for chunk in (0, 1)
        for sender in (1, 11)
        for receiver in (1, 11)
    }
    assert len(labels) == 32


def flipped(data: bytes, place: int = 0) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_every_argument_of_a_derivation_changes_it():
    values = {
        kdf.derive(secret, label, parameters)
        for secret in (SECRET, flipped(SECRET, 31))
        for label in (b"a", b"b", b"")
        for parameters in (PARAMETERS, flipped(PARAMETERS))
    }
    assert len(values) == 12


def test_every_argument_of_a_commitment_changes_it():
    values = {
        kdf.commit(label, parameters, secret)
        for label in (b"a", b"b", b"")
        for parameters in (PARAMETERS, flipped(PARAMETERS))
        for secret in (SECRET, flipped(SECRET, 31))
    }
    assert len(values) == 12


def test_a_commitment_is_not_ambiguous_where_label_and_hash_meet():
    moved = PARAMETERS[1:] + SECRET[:1]
    assert kdf.commit(b"a" + PARAMETERS[:1], moved, SECRET) != kdf.commit(b"a", PARAMETERS, SECRET)


@pytest.mark.parametrize("use", ["", "Mask", "mask/0", "mask1", "mask\n", "m sk", "é"])
def test_a_use_outside_the_alphabet_is_refused(use):
    with pytest.raises(InputError):
        kdf.label(use, ROUND, 0, 0, 0)


@pytest.mark.parametrize("numbers", [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_negative_numbers_are_refused(numbers):
    with pytest.raises(InputError):
        kdf.label("mask", ROUND, *numbers)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_wrong_lengths_are_refused(size):
    for call in (
        lambda: kdf.derive(bytes(size), b"a", PARAMETERS),
        lambda: kdf.derive(SECRET, b"a", bytes(size)),
        lambda: kdf.commit(b"a", PARAMETERS, bytes(size)),
        lambda: kdf.commit(b"a", bytes(size), SECRET),
    ):
        with pytest.raises(InputError):
            call()


@pytest.mark.parametrize("length", [-1, 0, 255 * 32 + 1])
def test_impossible_output_lengths_are_refused(length):
    with pytest.raises(InputError):
        kdf.expand(SECRET, b"", length)


def test_a_short_seed_is_refused():
    with pytest.raises(InputError):
        kdf.expand(bytes(15), b"", 32)


def test_refusals_do_not_show_the_secret():
    with pytest.raises(InputError) as refusal:
        kdf.derive(b"very secret", b"a", PARAMETERS)
    assert "very" not in str(refusal.value)
