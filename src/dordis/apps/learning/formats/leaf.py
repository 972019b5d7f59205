"""LEAF's JSON (FEMNIST, Shakespeare, Reddit): folders train and test of files with users and what each of them has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dordis.apps.learning.data import IGNORED, Dataset, Samples, Unit, Values, check_inputs, check_labels, checked
from dordis.apps.learning.formats.tokens import PAD, Vocabulary, letters
from dordis.errors import InputError

UNIT = Unit("user", "the LEAF files")
SEQUENCE = 10
"""Words of a sequence in LEAF's Reddit."""


class UserData(msgspec.Struct):
    """What one user has: as many x as y."""

    x: list[Any]
    y: list[Any]


class LeafFile(msgspec.Struct):
    """One file."""

    users: list[str]
    user_data: dict[str, UserData]
    num_samples: list[int] = []


def read_leaf(folder: Path, words: Vocabulary, shape: tuple[int, ...] = (), classes: int = 0) -> Dataset:
    """Read a folder with train/*.json and test/*.json; what the samples are, the first one tells."""
    train = [part for file in _files(folder / "train") for part in _users(file, words)]
    test = [part for file in _files(folder / "test") for part in _users(file, words)] if _has(folder / "test") else []
    x, y = _together([samples for _, samples in train])
    kind = _kind(x, y)
    made: dict[str, Any] = {"shape": shape, "outputs": classes}
    if kind != "numbers":
        target, size = ("next-token", words.size) if kind == "words" else ("classification", letters().size)
        made = {"outputs": size, "target": target, "tokens": size}
    if test:
        x_test, y_test = _together([samples for _, samples in test])
        made |= {"x_test": x_test, "y_test": y_test, "test_keys": _keys(test)}
    return checked(Dataset(x, y, keys=_keys(train), unit=UNIT, **made))


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
    """Yield the users of the files of a folder, with what they have as it was written."""
    for file in _files(folder):
        yield from _written(file)


def _users(path: Path, words: Vocabulary) -> Iterator[tuple[str, Samples]]:
    """Yield the users of a file and what they have, as arrays."""
    for user, data in _written(path):
        try:
            yield user, _samples(data, words)
        except (InputError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path}: the samples of the user {user} are of no form that LEAF has: {error}") from None


def _written(path: Path) -> Iterator[tuple[str, UserData]]:
    """Yield the users of a file that have anything."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=LeafFile)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is no LEAF file: {error}") from None
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
    """Return what a user has, as arrays: images, lines of a play, or comments."""
    if isinstance(data.x[0], str):
        return _lines(data)
    if isinstance(data.y[0], dict):
        return _comments(data, words)
    x = check_inputs("x", np.array(data.x, np.float32))
    return x, check_labels("y", np.array(data.y), len(x))


def _lines(data: UserData) -> Samples:
    """Return Shakespeare's lines: 80 characters, and the one that follows."""
    known = letters()
    x = np.array([known.numbers(line) for line in data.x], np.int32)
    if x.ndim != 2:
        raise InputError("the lines have different lengths")
    return x, np.array([known.number(letter) for letter in data.y], np.int64)


def _comments(data: UserData, words: Vocabulary) -> Samples:
    """Return Reddit's comments: sequences of up to ten words, and for every word the one that follows."""
    pairs = [
        (sequence, following)
        for comment, y in zip(data.x, data.y, strict=True)
        for sequence, following in zip(comment, y["target_tokens"], strict=True)
    ]
    x = np.full((len(pairs), SEQUENCE), PAD, np.int32)
    y = np.full((len(pairs), SEQUENCE), IGNORED, np.int64)
    for i, (sequence, following) in enumerate(pairs):
        if len(sequence) > SEQUENCE or len(following) > len(sequence):
            raise InputError(f"a sequence has {len(sequence)} words, and {len(following)} to follow them")
        x[i, : len(sequence)] = words.numbers(sequence)
        y[i, : len(following)] = [IGNORED if word == "<PAD>" else words.number(word) for word in following]
    return x, y


def _together(parts: list[Samples]) -> Samples:
    if len({(x.shape[1:], x.dtype, y.shape[1:]) for x, y in parts}) != 1:
        raise InputError("the users of these LEAF files have samples of different shapes")
    x, y = zip(*parts, strict=True)
    return np.concatenate(x), np.concatenate(y)


def _kind(x: Any, y: Any) -> str:
    return "numbers" if x.dtype.kind == "f" else "words" if y.ndim == 2 else "letters"
