"""A model on its way: the bytes, what their digest binds, the pieces, and how many copies there are of it."""

import gc
import hashlib
from weakref import WeakValueDictionary

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dordis.errors import InputError
from dordis.rounds.model import DTYPES, PIECE, LastModel, ModelBytes

VALUES = np.array([0.0, -0.0, 1 / 3, 1e30, -2.5])


@pytest.mark.parametrize(("dtype", "bits"), [("<f4", 32), ("<f8", 64), ("<f2", 16)])
def test_the_numbers_travel_in_the_type_that_is_said(dtype, bits):
    values = np.array([0.5, -1.25, 3.0, 1 / 3])
    model = ModelBytes.from_numbers(values, dtype)
    assert len(model.data) == 4 * bits // 8
    assert model.data == values.astype(dtype).tobytes()
    assert np.array_equal(model.array, values.astype(dtype))


@pytest.mark.parametrize(
    ("values", "said"), [(None, "None: return"), ("abc", "str"), ({"a": 1}, "dict"), ([[1.0], [1.0, 2.0]], "list")]
)
def test_what_is_no_array_of_numbers_is_no_model(values, said):
    with pytest.raises(InputError, match=f"a model is an array of numbers, not {said}"):
        ModelBytes.from_numbers(values)


def test_unless_it_is_said_they_are_rounded_to_32_bits():
    assert np.array_equal(ModelBytes.from_numbers(VALUES).array, VALUES.astype(np.float32))
    assert ModelBytes.from_numbers(VALUES).dtype == "<f4"


@pytest.mark.parametrize("dtype", [">f4", "float32", "<i4", "O", "", "<f16"])
def test_any_other_type_is_refused(dtype):
    with pytest.raises(InputError, match="travel as one of"):
        ModelBytes.from_numbers(VALUES, dtype)


def test_the_digest_is_sha256_of_a_name_the_type_and_the_bytes_and_never_changes():
    model = ModelBytes.from_numbers([1.0, 2.0])
    data = bytes.fromhex("0000803f00000040")
    assert model.digest == hashlib.sha256(b"dordis/v1/model<f4" + data).digest()
    assert model.digest.hex() == "63b1dc81343e6c1c9a8b193cee9a48caa90abc542c5f8124055e375d7e481a0a"


def test_the_digest_binds_every_bit_and_the_type():
    values = ([1.0, 2.0], [2.0, 1.0], [1.0], [], [-0.0], [0.0])
    longer = ([], np.frombuffer(ModelBytes.from_numbers([1.0, 2.0]).data, "<f8"))
    models = [*map(ModelBytes.from_numbers, values), *(ModelBytes.from_numbers(value, "<f8") for value in longer)]
    assert len({model.digest for model in models}) == len(models)


def test_the_numbers_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        ModelBytes.from_numbers(VALUES).array[0] = 1.0


def test_a_model_of_several_axes_or_strides_is_written_in_order():
    table = np.arange(6.0).reshape(2, 3)
    assert ModelBytes.from_numbers(table).data == ModelBytes.from_numbers(table.ravel()).data
    assert ModelBytes.from_numbers(table[:, ::2]).data == ModelBytes.from_numbers([0.0, 2.0, 3.0, 5.0]).data


@given(st.sampled_from([0, 1, 4, PIECE - 4, PIECE, PIECE + 4, 2 * PIECE + 8]))
def test_the_pieces_in_order_are_the_bytes(size):
    model = ModelBytes.from_numbers(np.arange(size // 4))
    joined = b""
    for offset, piece in model.pieces():
        assert offset == len(joined)
        assert 0 < len(piece) <= PIECE
        joined += piece
    assert joined == model.data


def test_a_model_shows_no_numbers():
    assert "data" not in repr(ModelBytes.from_numbers(VALUES))


def test_the_last_model_only_is_kept():
    cache, first, second = LastModel(), ModelBytes.from_numbers([1.0]), ModelBytes.from_numbers([2.0])
    assert cache.get(first.digest) is None
    cache.keep(first)
    assert cache.get(first.digest) is first
    cache.keep(second)
    assert cache.get(first.digest) is None
    assert cache.get(second.digest) is second


def test_clients_that_share_keep_equal_models_in_memory_once():
    shared = WeakValueDictionary()
    caches = [LastModel(shared) for _ in range(3)]
    for cache in caches:
        cache.keep(ModelBytes.from_numbers([1.0, 2.0]))
    kept = {id(cache.get(ModelBytes.from_numbers([1.0, 2.0]).digest)) for cache in caches}
    assert len(kept) == 1
    for cache in caches:
        cache.keep(ModelBytes.from_numbers([3.0]))
    gc.collect()
    assert list(shared) == [ModelBytes.from_numbers([3.0]).digest]


def test_the_first_type_is_the_usual_one():
    assert DTYPES[0] == "<f4"
