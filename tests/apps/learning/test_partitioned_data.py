"""Data sets: the digits, and files in the same format; every sample is dealt to exactly one client."""

import importlib.resources
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.apps.learning.partitioned_data import (
    Dataset,
    Iid,
    Lda,
    Merge,
    Natural,
    Unit,
    default_partition,
    remove_clients,
)
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


def labelled(y):
    y = np.asarray(y, np.int64)
    return Dataset(np.zeros((y.size, 1)), y, np.zeros((1, 1)), y[:1])


def rng(seed=0):
    return np.random.default_rng(seed)


def owned_by(train, test):
    """Return a data set of these keys, whose test inputs are their places."""
    x = np.arange(len(test), dtype=np.float64)[:, None]
    keys = {"keys": np.array(train), "test_keys": np.array(test), "unit": Unit("writer", "a test")}
    return Dataset(np.zeros((len(train), 1)), np.zeros(len(train), np.int64), x, np.zeros(len(test), np.int64), **keys)


@settings(max_examples=60)
@given(
    test=st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=20),
    clients=st.integers(1, 6),
    kind=st.sampled_from([Natural(some=True), Iid(), Lda(), Merge(2, some=True)]),
    seed=st.integers(0, 2**32),
)
def test_no_test_input_is_of_a_client_if_there_are_others(test, clients, kind, seed):
    train = [*"abcdefgh"] * 3
    data = owned_by(train, test)
    parts = kind.split(data, min(clients, 4), rng(seed))
    theirs = {train[i] for part in parts for i in part}
    public, said = remove_clients(data, parts)
    expected = [i for i, key in enumerate(test) if key not in theirs]
    assert public.x_test.ravel().tolist() == (expected or list(range(len(test))))
    assert ("epsilon does not cover" in said) == (not expected)
    assert ("left out" in said) == (0 < len(expected) < len(test))


def test_test_inputs_that_do_not_say_whose_they_are_are_all_public():
    data = replace(owned_by([*"aabb"], [*"ab"]), test_keys=None)
    assert remove_clients(data, Natural().split(data, 2, rng())) == (data, "")


def covers(parts, samples):
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


@settings(max_examples=60)
@given(
    y=st.lists(st.integers(0, 4), min_size=20, max_size=80),
    clients=st.integers(1, 10),
    kind=st.sampled_from([Iid(), Lda(1e-3), Lda(1.0, least=1), Lda(100.0, least=2)]),
    seed=st.integers(0, 2**32),
)
def test_each_sample_has_exactly_one_client(y, clients, kind, seed):
    parts = kind.split(labelled(y), clients, rng(seed))
    assert len(parts) == clients
    assert covers(parts, len(y))
    assert min(part.size for part in parts) >= getattr(kind, "least", 1)


def test_dealing_like_cards_gives_all_equally_many():
    parts = Iid().split(digits(), 100, rng())
    assert {part.size for part in parts} == {14, 15}


def test_mixes_of_labels_are_like_the_dirichlet_distribution():
    """With alpha parameters a for k labels, the expected sum of squared shares is (a + 1) / (k a + 1)."""
    y = np.repeat(np.arange(4), 25_000)
    for alpha in (0.1, 1.0, 10.0):
        parts = Lda(alpha).split(labelled(y), 400, rng(1))
        shares = np.array([np.bincount(y[part], minlength=4) / part.size for part in parts])
        assert (shares**2).sum(axis=1).mean() == pytest.approx((alpha + 1) / (4 * alpha + 1), rel=0.05)


def test_a_partition_follows_its_seed():
    for kind in (Iid(), Lda()):
        first, again, other = ([part.tolist() for part in kind.split(digits(), 50, rng(s))] for s in (1, 1, 2))
        assert first == again != other


KEYS = np.array(["ann", "bob", "cy", "dee", "ann", "cy", "eve"])


def owned():
    return replace(labelled([0, 1, 0, 1, 0, 1, 0]), keys=KEYS, unit=Unit("hospital", "the column hospital"))


def test_each_key_is_a_client_if_nothing_else_is_said():
    assert default_partition(owned()) == Natural()
    parts = Natural().split(owned(), 5, rng())
    assert [tuple(KEYS[part]) for part in parts] == [("ann",) * 2, ("bob",), ("cy",) * 2, ("dee",), ("eve",)]
    assert Natural().describe_unit(owned(), 5) == "clients = 5 hospitals, from the column hospital"
    assert default_partition(labelled([0, 1])) == Lda()


def test_keys_are_neither_merged_nor_left_out_unless_the_configuration_says_so():
    for clients in (2, 4):
        with pytest.raises(InputError, match=r"5 hospitals, from the column hospital.*federation\.clients = 5"):
            Natural().split(owned(), clients, rng())
    with pytest.raises(InputError, match="that makes 5 clients, not 6"):
        Natural().split(owned(), 6, rng())
    with pytest.raises(InputError, match="with 2 for each client that makes 2 clients, not 3"):
        Merge(keys=2).split(owned(), 3, rng())


def test_merged_keys_stay_together():
    parts = Merge(keys=2).split(owned(), 2, rng())
    held = [{*KEYS[part]} for part in parts]
    assert [len(keys) for keys in held] == [2, 2]
    assert not held[0] & held[1]
    for part, keys in zip(parts, held, strict=True):
        assert np.isin(KEYS, list(keys)).sum() == part.size
    words = "clients = 2 groups of 2 hospitals, from the column hospital; 1 hospital left out"
    assert Merge(keys=2).describe_unit(owned(), 2) == words


def test_some_keys_take_no_part_where_that_is_said():
    parts = Natural(some=True).split(owned(), 3, rng())
    assert [len({*KEYS[part]}) for part in parts] == [1, 1, 1]
    assert Natural(some=True).describe_unit(owned(), 3).endswith("; 2 hospitals left out")


def test_what_is_dealt_at_random_is_said_to_be_nobodys():
    assert "not the 5 hospitals" in Iid().describe_unit(owned(), 3)
    assert "do not say whose" in Lda().describe_unit(labelled([0, 1]), 2)


def test_what_cannot_be_dealt_is_refused():
    for kind, clients in ((Iid(), 5), (Iid(), 0), (Lda(least=2), 3), (Natural(), 1)):
        with pytest.raises(InputError):
            kind.split(labelled([0, 1, 0, 1]), clients, rng())
    with pytest.raises(InputError, match="do not name their clients"):
        Merge().split(labelled([0, 1]), 1, rng())
    with pytest.raises(InputError, match="two keys or more"):
        Merge(keys=1)
    with pytest.raises(InputError, match="for classification"):
        Lda().split(replace(labelled([0, 1, 1, 0]), target="regression"), 2, rng())


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"alpha": float("nan")}, {"alpha": float("inf")}, {"least": -1}])
def test_dirichlet_parameters_without_a_meaning_are_refused(wrong):
    with pytest.raises(InputError):
        Lda(**wrong)
