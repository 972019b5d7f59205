"""Data sets: the digits, and files in the same format."""

import importlib.resources

import numpy as np
import pytest

from dordis.apps.learning.settings import Settings
from dordis.apps.learning.sources import digits
from dordis.apps.learning.sources import load as load_source
from dordis.errors import InputError

GOOD = {
    "x_train": np.arange(24.0).reshape(4, 2, 3),
    "y_train": np.array([0, 1, 2, 0]),
    "x_test": np.ones((2, 6)),
    "y_test": np.array([1, 2]),
}


def load(name):
    return load_source(Settings(data=name))


@pytest.fixture
def stored(tmp_path):
    def save(**changes):
        arrays = {name: array for name, array in (GOOD | changes).items() if array is not None}
        np.savez(tmp_path / "set.npz", **arrays)
        return str(tmp_path / "set.npz")

    return save


def test_the_digits_are_all_there():
    data = load("digits")
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    assert (x.shape, data.features, data.classes) == ((1797, 64), 64, 10)
    assert (x.min(), x.max()) == (0, 1)
    assert np.array_equal(x * 16, np.rint(x * 16))
    # The counts that the source gives for its test set, and their pixels' sum as scikit-learn's copy has it.
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert x.sum() * 16 == 561718
    assert np.bincount(data.y_test).tolist() == [36] * 10
    assert np.unique(x, axis=0).shape[0] == 1797


def test_the_source_of_the_digits_is_named_beside_them():
    note = (importlib.resources.files("dordis.apps.learning") / "digits.md").read_text(encoding="utf-8")
    assert all(part in note for part in ("Alpaydin", "Kaynak", "CC BY 4.0", "UCI"))


def test_centring_takes_from_each_input_its_own_mean():
    data = digits()
    centred = data.centre_inputs()
    np.testing.assert_allclose(centred.x_train.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(centred.x_test, data.x_test - data.x_test.mean(axis=1)[:, None])
    assert centred.y_train is data.y_train


def test_a_file_is_read_with_inputs_as_rows(stored):
    data = load(stored(scale=np.array(2), keys=np.array(["a", "b", "a", "c"])))
    np.testing.assert_array_equal(data.train()[0], np.arange(24.0).reshape(4, 6) / 2)
    assert (data.features, data.input_shape) == (6, (2, 3))
    assert (data.y_train.tolist(), data.classes, data.keys.tolist()) == ([0, 1, 2, 0], 3, ["a", "b", "a", "c"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"x_train": None, "y_test": None}, "x_train, y_test are missing"),
        ({"x_test": np.ones((2, 5))}, "5"),
        ({"x_test": np.ones((3, 6))}, "y_test"),
        ({"x_train": np.ones(4)}, "x_train"),
        ({"x_train": np.full((4, 6), np.nan)}, "finite"),
        ({"x_train": np.full((4, 6), "a")}, "numbers"),
        ({"x_train": np.ones((0, 6)), "y_train": np.zeros(0, int)}, "x_train"),
        ({"y_train": np.array([0, 1, 2])}, "4 whole numbers"),
        ({"y_train": np.array([0.0, 1, 2, 0])}, "whole numbers"),
        ({"y_train": np.array([0, -1, 2, 0])}, "-1"),
        ({"y_train": np.array([0, 1, 2, 4_000_000])}, "4000000"),
        ({"y_train": np.array([0, 1, 1, 0])}, "y_test has labels up to 2"),
        ({"scale": np.array(0)}, "scale"),
        ({"scale": np.array([1, 2])}, "scale"),
        ({"keys": np.array(["a"])}, "keys"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_the_file_named(stored, changes, reason):
    with pytest.raises(InputError, match=reason) as refused:
        load(stored(**changes))
    assert "set.npz" in str(refused.value)


def test_files_that_are_no_data_sets_are_refused(tmp_path):
    with pytest.raises(InputError, match="there is no data set"):
        load(str(tmp_path / "none.npz"))
    (tmp_path / "text.npz").write_text("digits")
    np.save(tmp_path / "single.npy", np.zeros(3))
    np.savez(tmp_path / "objects.npz", x_train=np.array([{}], dtype=object))
    for name, reason in (("text.npz", "cannot be read"), ("objects.npz", "cannot be read"), ("single.npy", "single")):
        with pytest.raises(InputError, match=reason):
            load(str(tmp_path / name))


def test_without_data_to_test_with_there_are_none(stored):
    assert load(stored(x_test=None, y_test=None)).test is None


def test_images_of_bytes_stay_bytes_until_they_are_used(stored):
    images = np.arange(4 * 6, dtype=np.uint8).reshape(4, 6)
    data = load(stored(x_train=images, scale=np.array(255)))
    assert data.x_train.dtype == np.uint8
    x, y = data.train(np.array([1]))
    assert x.dtype == np.float32
    np.testing.assert_allclose(x, images[1:2] / 255, rtol=1e-6)
    assert y.tolist() == [1]


def test_targets_of_a_regression_are_any_finite_numbers(stored):
    data = load_source(
        Settings(data=stored(y_train=np.array([0.5, -1.0, 2.25, 3.0]), y_test=np.ones(2)), target="regression")
    )
    assert (data.y_train.tolist(), data.classes) == ([0.5, -1.0, 2.25, 3.0], 1)
    with pytest.raises(InputError, match="finite numbers"):
        load_source(Settings(data=stored(y_train=np.array([0.5, np.nan, 1, 2])), target="regression"))


def test_a_folder_of_data_is_for_data_sets_by_name(tmp_path):
    np.savez(tmp_path / "own.npz", x_train=np.zeros((3, 2)))
    for name in ("digits", "own.npz"):
        with pytest.raises(InputError, match=r"--data-dir.*leave that out"):
            load_source(Settings(data=name, data_dir="."), tmp_path)
    with pytest.raises(InputError, match="there is no data set chat"):
        load_source(Settings(data="chat", data_dir="."), tmp_path)
