"""Every loader on a small file of its exact format, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from dordis.apps.learning.formats import BEGIN, END, LETTERS, UNKNOWN, hash_words, read_words
from dordis.apps.learning.partitioned_data import IGNORED
from dordis.apps.learning.settings import Settings
from dordis.apps.learning.sources import load
from dordis.errors import InputError
from tests.apps.learning import fixtures


def loaded(name, data_dir, home=Path(), **options):
    return load(Settings(data=name, data_dir=str(data_dir), **options), home)


@pytest.mark.parametrize("gzipped", [True, False])
@pytest.mark.parametrize("inner", ["", "mnist"])
def test_mnist_is_read_from_idx_files(tmp_path, gzipped, inner):
    made = fixtures.write_idx(tmp_path / inner, gzipped=gzipped)
    data = loaded("mnist", tmp_path)
    np.testing.assert_array_equal(data.x_train.reshape(-1, 28, 28), made["train"][0])
    np.testing.assert_array_equal(data.y_test, made["t10k"][1])
    assert (data.input_shape, data.classes, data.keys) == ((28, 28), 10, None)
    assert 0 <= data.train()[0].min() <= data.train()[0].max() <= 1


def test_emnist_is_turned_upright_and_its_letters_count_from_0(tmp_path):
    made = fixtures.write_idx(tmp_path, "emnist-letters-", (("train", 30), ("test", 10)), first=1)
    data = loaded("emnist-letters", tmp_path)
    np.testing.assert_array_equal(data.x_train[4].reshape(28, 28), made["train"][0][4].T)
    assert (data.y_train.min(), data.y_train.max()) == (0, 9)


def test_cifar_10_is_read_from_its_binary_version(tmp_path):
    made = fixtures.write_cifar10(tmp_path / "cifar-10-batches-bin")
    data = loaded("cifar10", tmp_path)
    assert (data.x_train.shape, data.x_test.shape, data.input_shape, data.classes) == (
        (40, 3072),
        (8, 3072),
        (3, 32, 32),
        10,
    )
    images, labels = made["data_batch_2"]
    np.testing.assert_array_equal(data.x_train[8:16].reshape(-1, 3, 32, 32), images)
    np.testing.assert_array_equal(data.y_train[8:16], labels)


def test_cifar_100_has_the_fine_labels(tmp_path):
    fixtures.write_cifar100(tmp_path)
    data = loaded("cifar100", tmp_path)
    assert (data.y_train.tolist(), data.classes) == ([8 * i for i in range(12)], 100)


def test_leaf_s_femnist_has_users(tmp_path):
    fixtures.write_femnist(tmp_path)
    data = loaded("femnist", tmp_path)
    assert (data.x_train.shape, data.x_test.shape, data.input_shape, data.classes) == (
        (24, 784),
        (12, 784),
        (28, 28),
        62,
    )
    assert np.unique(data.keys).size == 6
    assert data.describe()["whose"] == "6 users, from the LEAF files; 4 to 4 inputs each, 4.0 on average"


def test_leaf_s_shakespeare_is_letters_and_the_one_that_follows(tmp_path):
    fixtures.write_shakespeare(tmp_path)
    data = loaded("shakespeare", tmp_path)
    assert (data.x_train.shape, data.classes, data.tokens) == ((20, 80), 81, 81)
    text = "".join(LETTERS[i] for i in data.x_train[0])
    assert text.startswith("To be, or not to be")
    assert data.y_train[0] == data.x_train[1][-1]  # the next line begins one character later
    assert data.train()[0].dtype.kind == "i"


def test_leaf_s_reddit_is_words_and_those_that_follow(tmp_path):
    fixtures.write_reddit(tmp_path)
    data = loaded("reddit", tmp_path, vocabulary=1000)
    assert (data.x_train.shape, data.y_train.shape, data.target, data.classes) == ((9, 10), (9, 10), "next-token", 1000)
    hello, there = hash_words(1000).numbers(["hello", "there"])
    assert data.x_train[0, :4].tolist() == [BEGIN, hello, there, END]
    assert data.y_train[0].tolist() == [hello, there, END] + [IGNORED] * 7
    assert np.unique(data.keys).tolist() == ["u1", "u2", "u3"]


def test_words_get_numbers_from_a_public_list_or_from_a_hash(tmp_path):
    (tmp_path / "words.txt").write_text("hello\n\nthere\nhello\n")
    fixtures.write_reddit(tmp_path)
    data = loaded("reddit", tmp_path, home=tmp_path, vocabulary="words.txt")
    assert data.classes == 6
    assert data.y_train[1, :3].tolist() == [UNKNOWN] * 3
    numbers = hash_words(50).numbers(f"w{i}" for i in range(2000))
    assert (min(numbers), max(numbers)) == (4, 49)
    assert hash_words(50).number("hello") == hash_words(50).number("hello")
    for broken in (lambda: hash_words(4), lambda: read_words(tmp_path / "none.txt")):
        with pytest.raises(InputError):
            broken()


def test_a_folder_of_leaf_files_needs_no_name(tmp_path):
    fixtures.write_femnist(tmp_path, size=16, classes=3)
    data = load(Settings(data=str(tmp_path), shape=(4, 4)))
    assert (data.features, data.input_shape) == (16, (4, 4))
    with pytest.raises(InputError, match="5 x 5"):
        load(Settings(data=str(tmp_path), shape=(5, 5)))


def break_size(folder):
    path = folder / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])


def break_label(folder):
    path = folder / "test_batch.bin"
    path.write_bytes(b"\x0b" + path.read_bytes()[1:])


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (break_size, "not records of 3,073"),
        (break_label, "the label 11"),
        (lambda folder: (folder / "data_batch_5.bin").unlink(), "data_batch_5.bin cannot be read"),
        (lambda folder: (folder / "data_batch_1.bin").unlink(), "there is no cifar10 in"),
    ],
)
def test_cifar_files_that_are_none_are_refused(tmp_path, broken, words):
    fixtures.write_cifar10(tmp_path)
    broken(tmp_path)
    with pytest.raises(InputError, match=words):
        loaded("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0\0\x0d\x03" + bytes(12), "no idx file"),
        (
            b"\0\0\x08\x03" + bytes([0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(3),
            "3 bytes of data, but its header",
        ),
        (b"\0\0\x08\x03" + bytes(12), "is empty"),
    ],
)
def test_idx_files_that_are_none_are_refused(tmp_path, data, words):
    fixtures.write_idx(tmp_path, gzipped=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(data)
    with pytest.raises(InputError, match=words):
        loaded("mnist", tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a LEAF file"),
        ('{"users": ["a"], "user_data": {}}', "different users"),
        ('{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1]], "y": [1]}}}', "num_samples"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [1, 2]}}}', "1 x and 2 y"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1], [1, 2]], "y": [1, 2]}}}', "do not have LEAF"),
        ('{"users": ["a"], "user_data": {"a": {"x": [["b"]], "y": [{"target": 3}]}}}', "do not have LEAF"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1.0, 2.0]], "y": [-3]}}}', "do not have LEAF"),
        ('{"users": ["a", "b"], "user_data": {"a": {"x": [[1]], "y": [1]}, "b": {"x": [[1, 2]], "y": [1]}}}', "shapes"),
    ],
)
def test_leaf_files_that_are_none_are_refused(tmp_path, text, words):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "all.json").write_text(text)
    with pytest.raises(InputError, match=words):
        load(Settings(data=str(tmp_path)))


def test_what_is_nowhere_is_said_with_what_there_is(tmp_path):
    with pytest.raises(InputError, match=r"one of digits, .*cifar10.*\.npz"):
        load(Settings(data="nothing"), tmp_path)
    with pytest.raises(InputError, match=r"preprocess\.sh of LEAF"):
        load(Settings(data="femnist"))
