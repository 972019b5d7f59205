"""Sharing against the plain-integer reference: any t shares give the secret, t - 1 say nothing, liars are named."""

import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.crypto.sharing import Interpolation, Shares, from_bytes, split, to_bytes
from dordis.errors import InputError, SharingError
from tests.references import shamir

P = shamir.P
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "shamir.json").read_text())

quick = settings(deadline=None, max_examples=40)
secret_bytes = st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32]))
point_lists = st.lists(
    st.one_of(st.integers(1, 12), st.integers(1, P - 1), st.just(P - 1)), min_size=1, max_size=9, unique=True
)


def spread(share: Shares, offset: int) -> Shares:
    """Return a share that differs in every limb."""
    return ((share.astype(np.uint64) + np.uint64(offset)) % np.uint64(P)).astype(np.uint32)


def fresh(count: int) -> tuple[bytes, ...]:
    return tuple(random.Random(count).randbytes(32) for _ in range(count))


def limbs_that_are(limbs: Sequence[int], points: Sequence[int]) -> Shares:
    """Return shares at threshold 1 of limbs that need not come from bytes."""
    return np.array([[limbs]] * len(points), np.uint32)


@quick
@given(st.data(), st.lists(secret_bytes, max_size=4), point_lists)
def test_shares_are_those_of_the_reference(data: st.DataObject, secrets: list[bytes], points: list[int]) -> None:
    threshold = data.draw(st.integers(1, len(points)))
    seed = data.draw(st.integers(0, 2**32))
    shares = split(secrets, points, threshold, random.Random(seed).randbytes)
    assert shares.dtype == np.uint32
    assert shares.shape == (len(points), len(secrets), 9)
    assert shares.tolist() == shamir.split(secrets, points, threshold, random.Random(seed).randbytes)


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_known_answers(vector: dict[str, Any]) -> None:
    secrets = [bytes.fromhex(secret) for secret in vector["secrets"]]
    points, threshold = vector["points"], vector["threshold"]
    entropy = io.BytesIO(bytes.fromhex(vector["entropy"]))
    shares = split(secrets, points, threshold, entropy.read)
    assert entropy.read() == b""
    assert [to_bytes(row).hex() for row in shares] == vector["shares"]
    parsed = np.stack([from_bytes(bytes.fromhex(row), len(secrets)) for row in vector["shares"]])
    assert Interpolation(points, threshold).combine(parsed) == tuple(secrets)


@quick
@given(st.data(), st.lists(secret_bytes, max_size=4), point_lists)
def test_any_threshold_shares_give_the_secrets(data: st.DataObject, secrets: list[bytes], points: list[int]) -> None:
    threshold = data.draw(st.integers(1, len(points)))
    chosen = data.draw(st.permutations(range(len(points))))[: data.draw(st.integers(threshold, len(points)))]
    shares = split(secrets, points, threshold)[chosen]
    interpolation = Interpolation([points[i] for i in chosen], threshold)
    assert interpolation.combine(shares) == tuple(secrets)


@quick
@given(secret_bytes, secret_bytes, point_lists)
def test_one_share_too_few_is_consistent_with_every_secret(secret: bytes, other: bytes, points: list[int]) -> None:
    threshold = len(points)
    shares = split([secret], points, threshold)[:-1]
    entropies = []
    for limb, constant in enumerate(shamir.to_limbs(other)):
        values = [constant, *shares[:, 0, limb].tolist()]
        entropies.append(shamir.coefficients([0, *points[:-1]], values)[1:])
    explained = b"".join(c.to_bytes(4, "little") for degree in zip(*entropies, strict=True) for c in degree)
    np.testing.assert_array_equal(split([other], points, threshold, io.BytesIO(explained).read)[:-1], shares)


@pytest.mark.parametrize("rejected", ["ffffff7f", "ffffffff"])
def test_rejected_draws_do_not_become_coefficients(rejected: str) -> None:
    words = [bytes.fromhex(rejected)] * 10 + [i.to_bytes(4, "little") for i in range(1, 10)]
    shares = split([bytes(32)], [1], 1), split([bytes(32)], [1, 2], 2, io.BytesIO(b"".join(words)).read)
    assert shares[0].tolist() == [[[0] * 9]]
    assert shares[1][0, 0].tolist() == list(range(1, 10))


def test_coefficients_are_fresh_for_every_limb_secret_degree_and_call() -> None:
    drawn = np.concatenate([split([bytes(32)] * 3, [1, 2, 3], 3)[0].ravel() for _ in range(2)])
    assert np.unique(drawn).size == drawn.size


@pytest.mark.parametrize("limb", range(9))
def test_a_recovered_limb_out_of_range_is_refused(limb: int) -> None:
    limbs = [2**30 - 1] * 8 + [2**16 - 1]
    interpolation = Interpolation([1, 2, 3], 1)
    assert interpolation.combine(limbs_that_are(limbs, [1, 2, 3])) == (b"\xff" * 32,)
    limbs[limb] += 1
    with pytest.raises(SharingError, match="secret 0: the shares do not give a secret of 32 bytes"):
        interpolation.combine(limbs_that_are(limbs, [1, 2, 3]))


def test_read_only_and_strided_shares_are_accepted() -> None:
    secrets = fresh(2)
    shares = np.asfortranarray(split(secrets, [1, 2, 3], 2))
    shares.flags.writeable = False
    assert Interpolation([1, 2, 3], 2).combine(shares) == secrets


def test_fewer_points_than_the_threshold_are_refused() -> None:
    with pytest.raises(SharingError, match="2 shares are fewer than the threshold 3"):
        Interpolation([1, 2], 3)


@pytest.mark.parametrize("points", [[1, 2, 1], [0, 1, 2], [1, 2, P], [-1, 1, 2], [1, 2, 2**32 + 3]])
def test_bad_points_are_refused(points: list[int]) -> None:
    with pytest.raises(InputError, match="point"):
        split([bytes(32)], points, 2)
    with pytest.raises(InputError, match="point"):
        Interpolation(points, 2)


@pytest.mark.parametrize("threshold", [-1, 0, 4])
def test_bad_thresholds_are_refused(threshold: int) -> None:
    with pytest.raises(InputError, match="threshold"):
        split([bytes(32)], [1, 2, 3], threshold)
    with pytest.raises((InputError, SharingError), match="threshold"):
        Interpolation([1, 2, 3], threshold)


@pytest.mark.parametrize("secrets", [[b"a" * 31], [b"a" * 33], [b"a" * 31, b"a" * 33], [b""]])
def test_secrets_of_another_length_are_refused_and_not_shown(secrets: list[bytes]) -> None:
    with pytest.raises(InputError, match="32 bytes") as refusal:
        split(secrets, [1, 2], 2)
    assert "aaa" not in str(refusal.value)


@pytest.mark.parametrize(
    "shares",
    [
        np.zeros((3, 1, 9), np.uint64),
        np.zeros((3, 1, 9), np.int32),
        np.zeros((3, 1, 8), np.uint32),
        np.zeros((3, 9), np.uint32),
        np.zeros((2, 1, 9), np.uint32),
        np.zeros((4, 1, 9), np.uint32),
        np.full((3, 1, 9), P, np.uint32),
    ],
)
def test_bad_shares_are_refused(shares: Any) -> None:
    interpolation = Interpolation([1, 2, 3], 2)
    with pytest.raises(InputError, match="share"):
        interpolation.combine(shares)


def test_serialisation_is_36_little_endian_bytes_a_share() -> None:
    share = np.array([[i << 20 for i in range(9)]], np.uint32)
    data = to_bytes(share)
    assert data == b"".join((i << 20).to_bytes(4, "little") for i in range(9))
    np.testing.assert_array_equal(from_bytes(data), share)
    np.testing.assert_array_equal(from_bytes(data * 3, 3), share.repeat(3, axis=0))
    assert from_bytes(b"", 0).shape == (0, 9)


@pytest.mark.parametrize("length", [0, 35, 37, 72])
def test_serialised_shares_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(SharingError, match="36 bytes"):
        from_bytes(bytes(length))


@pytest.mark.parametrize("limb", [P, P + 1, 2**32 - 1])
@pytest.mark.parametrize("position", range(9))
def test_serialised_limbs_out_of_range_are_refused(limb: int, position: int) -> None:
    data = bytearray(36)
    data[4 * position : 4 * position + 4] = limb.to_bytes(4, "little")
    with pytest.raises(SharingError, match="range"):
        from_bytes(bytes(data))


@pytest.mark.parametrize("share", [np.full((1, 9), P, np.uint32), np.zeros(9, np.uint32), np.zeros((1, 9), np.int64)])
def test_unusable_shares_are_not_serialised(share: Any) -> None:
    with pytest.raises(InputError, match="share"):
        to_bytes(share)
