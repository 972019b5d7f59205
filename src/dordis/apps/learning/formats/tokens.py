"""Text as whole numbers, by what is public: a hash, a list of words, or LEAF's letters.

A vocabulary made of people's own texts would tell about them before any noise is added.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dordis.errors import InputError

PAD, BEGIN, END, UNKNOWN = range(4)
SPECIAL = {"<PAD>": PAD, "<BOS>": BEGIN, "<EOS>": END, "<UNK>": UNKNOWN}
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The characters of LEAF's Shakespeare, in its order; whatever else there is is one more."""


@dataclass(frozen=True)
class Vocabulary:
    """How many tokens there are, and the number of a word."""

    size: int
    number: Callable[[str], int]

    def numbers(self, words: Iterable[str]) -> list[int]:
        """Return the numbers of words."""
        return [self.number(word) for word in words]


def hashed(size: int) -> Vocabulary:
    """Give each word a number by a hash of it, so that nobody's words make the list; some words share a number."""
    if size <= len(SPECIAL):
        raise InputError(f"a vocabulary has more than {len(SPECIAL)} tokens, not {size}")

    @lru_cache(maxsize=1 << 20)
    def number(word: str) -> int:
        if word in SPECIAL:
            return SPECIAL[word]
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        return len(SPECIAL) + int.from_bytes(digest, "big") % (size - len(SPECIAL))

    return Vocabulary(size, number)


def listed(path: Path) -> Vocabulary:
    """Give each word of a public list, one a line, a number."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the vocabulary {path} cannot be read: {error}") from None
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise InputError(f"the vocabulary {path} is empty: give one word a line")
    return numbered(words)


def numbered(words: Iterable[str]) -> Vocabulary:
    """Give each of some public words a number, in their order; whatever else there is has one, too.

    >>> numbered(["the", "of"]).numbers(["<BOS>", "of", "the", "sea", "<EOS>"])
    [1, 5, 4, 3, 2]
    """
    others = dict.fromkeys(word for word in words if word not in SPECIAL)
    numbers = SPECIAL | {word: len(SPECIAL) + i for i, word in enumerate(others)}
    return Vocabulary(len(numbers), lambda word: numbers.get(word, UNKNOWN))


def letters() -> Vocabulary:
    """Give each character of LEAF's Shakespeare its number."""
    numbers = {letter: i for i, letter in enumerate(LETTERS)}
    return Vocabulary(len(LETTERS) + 1, lambda letter: numbers.get(letter, len(LETTERS)))
