"""Texts of users as pairs of tokens over a public vocabulary: a list, or the words of held-out users.

A vocabulary made from the clients' own texts would disclose their words without noise, and so would a perplexity on
these texts.  So both come from held-out users: clients, vocabulary users and test users are disjoint.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.apps.learning.formats import (
    LETTERS,
    SPECIAL,
    UNKNOWN,
    UserData,
    Vocabulary,
    letters,
    number_words,
    read_users,
    read_word_list,
)
from dordis.errors import InputError

Tokens = npt.NDArray[np.int64]
TokenPairs = tuple[list[str], list[str]]
"""Words or letters of a user's text, and for each the word or letter that follows it."""


@dataclass(frozen=True, eq=False)
class Text:
    """The tokens of a user's text that are to be predicted, and the token before each of them."""

    before: Tokens
    following: Tokens


@dataclass(frozen=True)
class Symbols:
    """The tokens of texts: their numbers, their names, and a description of their source (`said`)."""

    vocabulary: Vocabulary
    names: tuple[str, ...]
    said: str
    special: bool
    """Whether there are special tokens: padding, beginning and end of a sentence, unknown words."""

    @property
    def size(self) -> int:
        """Return the number of tokens."""
        return self.vocabulary.size

    def text(self, written: TokenPairs) -> Text:
        """Return a text as token numbers."""
        before, following = (np.array(self.vocabulary.numbers(part), np.int64) for part in written)
        return Text(before, following)

    def unknown(self, text: Text) -> int:
        """Return the number of tokens of a text that are not in the vocabulary."""
        return int(np.count_nonzero(text.following == (UNKNOWN if self.special else self.size - 1)))


@dataclass(frozen=True, eq=False)
class Corpus:
    """Texts of the clients by zero-based index, and of held-out users for testing."""

    symbols: Symbols
    clients: tuple[Text, ...] = field(repr=False)
    test: tuple[Text, ...] = field(repr=False)


@dataclass(frozen=True)
class Users:
    """Disjoint groups of the users of LEAF's files: clients, vocabulary and test.

    Of clients only the training texts are used; of the other users, who are public, the test texts are used too.
    """

    clients: dict[str, UserData] = field(repr=False)
    vocabulary: dict[str, UserData] = field(repr=False)
    test: dict[str, UserData] = field(repr=False)


def read_corpus(folder: Path, vocabulary: Path | int, population: int, seed: int) -> Corpus:
    """Read LEAF's files of texts, draw the clients among the users, and use held-out users for testing.

    If `vocabulary` is a number, it consists of that many most frequent words of half of the held-out users, and the
    other half is tested.  With a list of words, or for texts of letters, all held-out users are tested.
    """
    users = draw_users(folder, population, seed, isinstance(vocabulary, int))
    symbols = read_symbols(vocabulary, users)
    return Corpus(
        symbols,
        tuple(symbols.text(_read_text(data, whole=True)) for data in users.clients.values()),
        tuple(symbols.text(_read_text(data, whole=False)) for data in users.test.values()),
    )


def draw_users(folder: Path, population: int, seed: int, needs_words: bool) -> Users:
    """Draw the clients among the users with training texts, and divide the other users into vocabulary and test users.

    Users with test texts only are never clients.  With `needs_words` half of the held-out users give the vocabulary,
    unless the texts are of letters, whose alphabet is known.
    """
    train = _collect(read_users(folder / "train"))
    if population > len(train):
        raise InputError(f"{folder} has {len(train)} users, fewer than {population} clients: set federation.clients")
    names = list(train)
    drawn = [names[i] for i in np.random.default_rng((1, seed)).permutation(len(names))]
    clients = {user: train.pop(user) for user in drawn[:population]}
    written = [(user, train[user]) for user in drawn[population:]]
    written += [(user, data) for user, data in read_users(folder / "test") if user not in clients]
    public = list(_collect(written).items())
    words = needs_words and not _is_letters(next(iter(clients.values())))
    middle = -(-len(public) // 2) if words else 0
    return Users(clients, dict(public[:middle]), dict(public[middle:]))


def _collect(written: Iterable[tuple[str, UserData]]) -> dict[str, UserData]:
    """Return all texts of each user, in the order of their first texts."""
    users: dict[str, UserData] = {}
    for user, data in written:
        known = users.get(user, UserData([], []))
        users[user] = UserData(known.x + data.x, known.y + data.y)
    return users


def read_symbols(vocabulary: Path | int, users: Users) -> Symbols:
    """Return the tokens: the alphabet if the texts are of letters, or else the words of the vocabulary."""
    tested = f"; tested on {len(users.test):,} held-out users, who are no clients"
    tested = tested if users.test else "; not tested: every user is a client, or gives the vocabulary"
    if _is_letters(next(iter(users.clients.values()))):
        known, said = letters(), f"the letters of LEAF's Shakespeare, and one for all others{tested}"
        return Symbols(known, (*LETTERS, "<UNK>"), said, special=False)
    if isinstance(vocabulary, int):
        words = most_frequent((_read_text(data, whole=True)[1] for data in users.vocabulary.values()), vocabulary)
        said = f"the {len(words):,} most frequent words of {len(users.vocabulary):,} public users, who are no clients"
    else:
        words = read_words(vocabulary)
        said = f"the {len(words):,} words of the public list {vocabulary.name}"
    said += f"; all others are one word, which counts, and the ends of sentences are predicted{tested}"
    return Symbols(number_words(words), (*SPECIAL, *words), said, special=True)


def _is_letters(data: UserData) -> bool:
    """Tell whether a user's texts have the form of LEAF's Shakespeare, lines of letters, and not of its Reddit."""
    return isinstance(data.x[0], str)


def most_frequent(texts: Iterable[list[str]], count: int) -> list[str]:
    """Return the `count` most frequent words of public texts; raise if there are no texts."""
    counted: Counter[str] = Counter()
    for text in texts:
        counted.update(word for word in text if word not in SPECIAL)
    if not counted:
        raise InputError(
            "there are no held-out users to take a vocabulary from: use fewer clients than there are users, or set "
            "app.options.vocabulary to a file with a public list of words, one a line"
        )
    return [word for word, _ in sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:count]]


def read_words(path: Path) -> list[str]:
    """Return the words of a public list, one a line, without repetitions and special tokens."""
    read_word_list(path)
    lines = (line.strip() for line in path.read_text(encoding="utf-8").split("\n"))
    return list(dict.fromkeys(line for line in lines if line and line not in SPECIAL))


def _read_text(data: UserData, *, whole: bool) -> TokenPairs:
    """Return the token pairs of a user. A line of letters gives all of its pairs if `whole`, else only the last one."""
    read: Callable[[UserData, bool], TokenPairs] = _letters if _is_letters(data) else _comments
    try:
        return read(data, whole)
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise InputError(f"the texts are neither LEAF's Shakespeare nor its Reddit: {error}") from None


def _letters(data: UserData, whole: bool) -> TokenPairs:
    before: list[str] = []
    following: list[str] = []
    for line, last in zip(data.x, data.y, strict=True):
        before += line if whole else line[-1]
        following += line[1:] + last if whole else last
    return before, following


def _comments(data: UserData, whole: bool) -> TokenPairs:
    before: list[str] = []
    following: list[str] = []
    for comment, target in zip(data.x, data.y, strict=True):
        for sequence, after in zip(comment, target["target_tokens"], strict=True):
            pairs: list[tuple[Any, Any]] = [pair for pair in zip(sequence, after, strict=False) if pair[1] != "<PAD>"]
            before += [word for word, _ in pairs]
            following += [word for _, word in pairs]
    return before, following
