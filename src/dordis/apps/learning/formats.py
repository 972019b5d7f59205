"""File formats of data sets: LEAF's JSON, numpy's .npz, MNIST's idx, CIFAR's binary files; and vocabularies for text.

All vocabularies are public: a vocabulary made from clients' texts would disclose their words without noise.
"""

import gzip
import hashlib
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import msgspec
import numpy as np

from dordis.apps.learning.partitioned_data import (
    IGNORED,
    Dataset,
    Samples,
    Target,
    Unit,
    Values,
    check_dataset,
    check_inputs,
    check_labels,
    check_targets,
    flatten,
)
from dordis.errors import InputError

PAD, BEGIN, END, UNKNOWN = range(4)
SPECIAL = {"<PAD>": PAD, "<BOS>": BEGIN, "<EOS>": END, "<UNK>": UNKNOWN}
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The characters of the data set Shakespeare of LEAF, in LEAF's order; one more token stands for all others."""


@dataclass(frozen=True)
class Vocabulary:
    """A numbering of words: the number of tokens, and the function from a word to its token number."""

    size: int
    number: Callable[[str], int]

    def numbers(self, words: Iterable[str]) -> list[int]:
        """Return the token number of each word."""
        return [self.number(word) for word in words]


def hash_words(size: int) -> Vocabulary:
    """Return a vocabulary of `size` tokens in which a word's number is a hash, so that some words share a number."""
    if size <= len(SPECIAL):
        raise InputError(f"a vocabulary has more than {len(SPECIAL)} tokens, not {size}")

    @lru_cache(maxsize=1 << 20)
    def number(word: str) -> int:
        if word in SPECIAL:
            return SPECIAL[word]
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        return len(SPECIAL) + int.from_bytes(digest, "big") % (size - len(SPECIAL))

    return Vocabulary(size, number)


def read_words(path: Path) -> list[str]:
    """Return the words of a public file with one word on each line, leaving out repetitions and special tokens.

    Raise InputError if the file is unreadable or empty.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the vocabulary {path} cannot be read: {error}") from None
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise InputError(f"the vocabulary {path} is empty: give one word a line")
    return list(dict.fromkeys(word for word in words if word not in SPECIAL))


def most_frequent(texts: Iterable[list[str]], count: int) -> list[str]:
    """Return the `count` most frequent words of public texts; raise InputError if there are no texts."""
    counted: Counter[str] = Counter()
    for text in texts:
        counted.update(word for word in text if word not in SPECIAL)
    if not counted:
        raise InputError(
            "there are no held-out users to take a vocabulary from: use fewer clients than there are users, or set "
            "app.options.vocabulary to a file with a public list of words, one a line"
        )
    return [word for word, _ in sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:count]]


def number_words(words: Iterable[str]) -> Vocabulary:
    """Return a vocabulary that numbers these public words in order; all other words share the token UNKNOWN.

    >>> number_words(["the", "of"]).numbers(["<BOS>", "of", "the", "sea", "<EOS>"])
    [1, 5, 4, 3, 2]
    """
    others = dict.fromkeys(word for word in words if word not in SPECIAL)
    numbers = SPECIAL | {word: len(SPECIAL) + i for i, word in enumerate(others)}
    return Vocabulary(len(numbers), lambda word: numbers.get(word, UNKNOWN))


def letters() -> Vocabulary:
    """Return the vocabulary of the characters of LEAF's Shakespeare."""
    numbers = {letter: i for i, letter in enumerate(LETTERS)}
    return Vocabulary(len(LETTERS) + 1, lambda letter: numbers.get(letter, len(LETTERS)))


UNIT = Unit("user", "the LEAF files")
SEQUENCE = 10
"""Largest number of words of a sequence in LEAF's Reddit."""


class UserData(msgspec.Struct):
    """The samples of one user in a LEAF file: inputs `x` and targets `y`, as JSON values."""

    x: list[Any]
    y: list[Any]


class LeafFile(msgspec.Struct):
    """One JSON file of LEAF: the names of the users, and each user's samples and number of samples."""

    users: list[str]
    user_data: dict[str, UserData]
    num_samples: list[int] = []


def read_leaf(folder: Path, words: Vocabulary, shape: tuple[int, ...] = (), classes: int = 0) -> Dataset:
    """Return the data set of a LEAF folder, with the files train/*.json and, if there are any, test/*.json.

    The samples are images, lines of letters, or sequences of words; `words` is the vocabulary for words, and
    `shape` and `classes` (0: the largest training label + 1) are for images.
    """
    train = [part for file in _files(folder / "train") for part in _users(file, words)]
    test = [part for file in _files(folder / "test") for part in _users(file, words)] if _has(folder / "test") else []
    x, y = _concatenate([samples for _, samples in train])
    kind = _kind(x, y)
    made: dict[str, Any] = {"shape": shape, "outputs": classes}
    if kind != "numbers":
        target, size = ("next-token", words.size) if kind == "words" else ("classification", letters().size)
        made = {"outputs": size, "target": target, "tokens": size}
    if test:
        x_test, y_test = _concatenate([samples for _, samples in test])
        made |= {"x_test": x_test, "y_test": y_test, "test_keys": _keys(test)}
    return check_dataset(Dataset(x, y, keys=_keys(train), unit=UNIT, **made))


def _keys(users: list[tuple[str, Samples]]) -> Values:
    """Return the user of every sample."""
    return np.repeat([user for user, _ in users], [len(samples[1]) for _, samples in users])


def _has(folder: Path) -> bool:
    return any(folder.glob("*.json"))


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise InputError(f"{folder} has no .json files: LEAF writes them with preprocess.sh")
    return files


def read_users(folder: Path) -> Iterator[tuple[str, UserData]]:
    """Yield the name and the raw samples of each user in the LEAF files of a folder, except users without samples."""
    for file in _files(folder):
        yield from _read_file(file)


def _users(path: Path, words: Vocabulary) -> Iterator[tuple[str, Samples]]:
    """Yield the name and the samples, as arrays, of each user in a LEAF file, except users without samples."""
    for user, data in _read_file(path):
        try:
            yield user, _samples(data, words)
        except (InputError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path}: the samples of the user {user} do not have LEAF's format: {error}") from None


def _read_file(path: Path) -> Iterator[tuple[str, UserData]]:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=LeafFile)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is not a LEAF file: {error}") from None
    if set(file.users) != file.user_data.keys():
        raise InputError(f"{path}: users and user_data name different users")
    sizes = [len(file.user_data[user].y) for user in file.users]
    if file.num_samples and file.num_samples != sizes:
        raise InputError(f"{path}: num_samples are not the numbers of samples")
    for user in file.users:
        data = file.user_data.pop(user)
        if len(data.x) != len(data.y):
            raise InputError(f"{path}: the user {user} has {len(data.x)} x and {len(data.y)} y")
        if data.y:
            yield user, data


def _samples(data: UserData, words: Vocabulary) -> Samples:
    """Return the samples of a user as arrays.  The samples are images, lines of a play, or comments."""
    if isinstance(data.x[0], str):
        return _lines(data)
    if isinstance(data.y[0], dict):
        return _comments(data, words)
    x = check_inputs("x", np.array(data.x, np.float32))
    return x, check_labels("y", np.array(data.y), len(x))


def _lines(data: UserData) -> Samples:
    """Return the samples of a user of Shakespeare: lines of 80 characters, and the character that follows each line."""
    known = letters()
    x = np.array([known.numbers(line) for line in data.x], np.int32)
    if x.ndim != 2:
        raise InputError("the lines have different lengths")
    return x, np.array([known.number(letter) for letter in data.y], np.int64)


def _comments(data: UserData, words: Vocabulary) -> Samples:
    """Return the samples of a user of Reddit: sequences of up to ten words, and for every word the following word."""
    pairs = [
        (sequence, following)
        for comment, y in zip(data.x, data.y, strict=True)
        for sequence, following in zip(comment, y["target_tokens"], strict=True)
    ]
    x = np.full((len(pairs), SEQUENCE), PAD, np.int32)
    y = np.full((len(pairs), SEQUENCE), IGNORED, np.int64)
    for i, (sequence, following) in enumerate(pairs):
        if len(sequence) > SEQUENCE or len(following) > len(sequence):
            raise InputError(f"a sequence has {len(sequence)} words, but {len(following)} following words")
        x[i, : len(sequence)] = words.numbers(sequence)
        y[i, : len(following)] = [IGNORED if word == "<PAD>" else words.number(word) for word in following]
    return x, y


def _concatenate(parts: list[Samples]) -> Samples:
    if len({(x.shape[1:], x.dtype, y.shape[1:]) for x, y in parts}) != 1:
        raise InputError("the users of these LEAF files have samples of different shapes")
    x, y = zip(*parts, strict=True)
    return np.concatenate(x), np.concatenate(y)


def _kind(x: Any, y: Any) -> str:
    return "numbers" if x.dtype.kind == "f" else "words" if y.ndim == 2 else "letters"


_NEEDED = ("x_train", "y_train")


def read_npz(path: Path, target: Target = "classification") -> Dataset:
    """Return the data set of a .npz file with the arrays x_train and y_train, and possibly x_test and y_test.

    Inputs may have any shape.  Two more arrays are optional: `scale`, a number by which inputs are divided, and `keys`,
    the client of each training input.
    """
    arrays = read_arrays(path)
    try:
        return build_dataset(arrays, target)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_arrays(path: Path) -> Mapping[str, Values]:
    """Return all arrays of a .npz file by name."""
    try:
        stored = np.load(path, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise InputError(f"{path} is a single array: pass an .npz file with {', '.join(_NEEDED)}")
        with stored:
            return {name: stored[name] for name in stored.files}
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"there is no data set {path}: pass the path of an .npz file") from error
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise InputError(f"{path} cannot be read: pass an .npz file of plain arrays") from error


def build_dataset(arrays: Mapping[str, Values], target: Target) -> Dataset:
    """Return the data set of named arrays (see `read_npz`); raise InputError if they do not fit each other."""
    needed = (*_NEEDED, *(("x_test", "y_test") if {"x_test", "y_test"} & arrays.keys() else ()))
    if missing := [name for name in needed if name not in arrays]:
        raise InputError(f"the arrays {', '.join(missing)} are missing")
    scale = arrays.get("scale", np.ones(()))
    if scale.shape != () or scale.dtype.kind not in "fiu" or not 0 < float(scale) < np.inf:
        raise InputError("scale must be one positive number")
    parts: dict[str, Any] = {}
    for part in ("train", "test") if len(needed) > len(_NEEDED) else ("train",):
        x = check_inputs(f"x_{part}", arrays[f"x_{part}"])
        parts[f"x_{part}"] = flatten(x)
        parts[f"y_{part}"] = check_targets(f"y_{part}", arrays[f"y_{part}"], len(x), target)
    shape = arrays["x_train"].shape[1:]
    return check_dataset(Dataset(**parts, keys=arrays.get("keys"), shape=shape, scale=float(scale), target=target))


_BYTES = 8
"""Third byte of an idx file's magic number if the elements are unsigned bytes, the only type that is read."""


def read_idx_folder(folder: Path, prefix: str = "", transposed: bool = False, first: int = 0) -> Dataset:
    """Return the data set of the idx files {prefix}{train,t10k or test}-{images-idx3,labels-idx1}-ubyte[.gz].

    With `transposed`, rows and columns of the images are swapped, because EMNIST stores images transposed.  `first` is
    the smallest label in the files, which is 1 for EMNIST's letters.
    """
    parts: dict[str, Any] = {}
    for part, names in (("train", ("train",)), ("test", ("t10k", "test"))):
        images = read_idx(_find(folder, [f"{prefix}{name}-images-idx3-ubyte" for name in names]), 3)
        labels = read_idx(_find(folder, [f"{prefix}{name}-labels-idx1-ubyte" for name in names]), 1)
        images = images.transpose(0, 2, 1) if transposed else images
        parts[f"x_{part}"] = flatten(images)
        parts[f"y_{part}"] = check_labels(f"the labels to {part} in {folder}", labels, len(images)) - first
    return check_dataset(Dataset(**parts, shape=images.shape[1:], scale=255.0))


def read_idx(path: Path, dimensions: int) -> Values:
    """Read one idx file: an array of unsigned bytes with this number of dimensions."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, _BYTES, dimensions]):
        raise InputError(f"{path} is no idx file of bytes in {dimensions} dimensions")
    shape = tuple(int(size) for size in np.frombuffer(data[4:header], ">u4"))
    if len(data) - header != math.prod(shape):
        raise InputError(
            f"{path} has {len(data) - header:,} bytes of data, but its header announces {math.prod(shape):,}"
        )
    if not math.prod(shape):
        raise InputError(f"{path} is empty")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _find(folder: Path, names: list[str]) -> Path:
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise InputError(f"{folder} has no file {names[0]}.gz")


CIFAR_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


def read_cifar10(folder: Path) -> Dataset:
    """Read the files of CIFAR-10, data_batch_1.bin to data_batch_5.bin and test_batch.bin, in a folder."""
    return _read_cifar(folder, [f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin", labels=1, classes=10)


def read_cifar100(folder: Path) -> Dataset:
    """Read the files of CIFAR-100, train.bin and test.bin, in a folder; the labels are the 100 fine classes."""
    return _read_cifar(folder, ["train.bin"], "test.bin", labels=2, classes=100)


def _read_cifar(folder: Path, train: list[str], test: str, labels: int, classes: int) -> Dataset:
    parts = [read_batch(folder / name, labels, classes) for name in train]
    x_test, y_test = read_batch(folder / test, labels, classes)
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return check_dataset(Dataset(x, y, x_test, y_test, shape=CIFAR_SHAPE, outputs=classes, scale=255.0))


def read_batch(path: Path, labels: int, classes: int) -> Samples:
    """Return images and labels of a binary CIFAR file; of the `labels` labels of an image the last is used."""
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    record = labels + _PIXELS
    if not data.size or data.size % record:
        raise InputError(f"{path} is no binary CIFAR file: {data.size:,} bytes are not records of {record:,}")
    rows = data.reshape(-1, record)
    y = rows[:, labels - 1].astype(np.int64)
    if y.max() >= classes:
        raise InputError(f"{path} has the label {y.max()}, and there are {classes} classes")
    return np.ascontiguousarray(rows[:, labels:]), y
