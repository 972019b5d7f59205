"""A language model of words and pairs of frequent words, what clients count for it, and its perplexity."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dordis.apps.learning.formats import tokens
from dordis.apps.text.corpus import Symbols, Text, Tokens
from dordis.privacy.skellam import Floats


@dataclass(frozen=True, eq=False)
class Bigrams:
    """The probability of a word, times the lift that the word before gives it, where both are frequent."""

    words: Floats = field(repr=False)
    contexts: Tokens = field(repr=False)
    columns: Tokens = field(repr=False)
    lifts: Floats = field(repr=False)
    """By context and column."""

    @classmethod
    def unigrams(cls, words: Floats) -> "Bigrams":
        """Return the model in which words are independent."""
        none = np.zeros(0, np.int64)
        return cls(words, none, none, np.zeros((0, 0)))

    @cached_property
    def _totals(self) -> Floats:
        """Return what every context's probabilities add up to before they are divided by it."""
        totals: Floats = 1.0 + (self.lifts - 1.0) @ self.words[self.columns]
        return totals

    def probabilities(self, text: Text) -> Floats:
        """Return what the model gave each token of a text, before it came."""
        found: Floats = self.words[text.following]
        row, column = (_places(part, self.words.size) for part in (self.contexts, self.columns))
        i, j = row[text.before], column[text.following]
        both, begun = (i >= 0) & (j >= 0), i >= 0
        found[both] *= self.lifts[i[both], j[both]]
        found[begun] /= self._totals[i[begun]]
        return found


def perplexities(model: Bigrams, texts: Sequence[Text]) -> tuple[float, float]:
    """Return the perplexity by user, in which all users count the same, and that by token."""
    losses = [-np.log(model.probabilities(text)) for text in texts if text.following.size]
    by_user = np.mean([loss.mean() for loss in losses])
    return float(np.exp(by_user)), float(np.exp(np.concatenate(losses).mean()))


def countable(symbols: Symbols) -> Floats:
    """Return 1 for every token that can be predicted: neither padding nor the beginning of a sentence can."""
    weights = np.ones(symbols.size)
    if symbols.special:
        weights[[tokens.PAD, tokens.BEGIN]] = 0.0
    return weights


def count_words(text: Text, size: int) -> Floats:
    """Return a client's update of the first pass: how often it has each word, at norm 1."""
    return _unit(np.bincount(text.following, minlength=size).astype(np.float64))


@dataclass(frozen=True, eq=False)
class PairCounts:
    """What is counted in the second pass, as it follows from the public model of the first: `words`.

    Words are weighted by p^-flat, pairs by the same of their product; `share` is the norm of the pairs' part.
    """

    words: Floats = field(repr=False)
    contexts: Tokens = field(repr=False)
    alike: Tokens = field(repr=False)
    """For every context a word that is as frequent: itself, but a sentence begins as often as one ends."""
    columns: Tokens = field(repr=False)
    flat: float
    share: float

    @classmethod
    def of(cls, words: Floats, symbols: Symbols, top: int, flat: float, share: float) -> "PairCounts":
        """Take the most frequent words, and the beginning of a sentence as a context."""
        columns = np.argsort(-words, kind="stable")[:top]
        begin, end = ([tokens.BEGIN], [tokens.END]) if symbols.special else ([], [])
        contexts, alike = np.array([*begin, *columns]), np.array([*end, *columns])
        return cls(words, contexts, alike, columns, flat, share)

    @staticmethod
    def dim(symbols: Symbols, top: int) -> int:
        """Return the length of an update of the second pass."""
        columns = min(top, symbols.size)
        return symbols.size + columns * (columns + int(symbols.special))

    @cached_property
    def weights(self) -> tuple[Floats, Floats]:
        """Return the weights of words and of pairs."""
        return _flattened(self.words, self.flat), _flattened(self.independent(self.words), self.flat)

    def independent(self, words: Floats) -> Floats:
        """Return how frequent the pairs would be if words were independent."""
        return np.outer(words[self.alike], words[self.columns]).ravel()

    def count(self, text: Text) -> Floats:
        """Return a client's update: words, then pairs, both weighted."""
        size, columns = self.words.size, self.columns.size
        i, j = _places(self.contexts, size)[text.before], _places(self.columns, size)[text.following]
        both = (i >= 0) & (j >= 0)
        pairs = np.bincount(i[both] * columns + j[both], minlength=self.contexts.size * columns)
        words = np.bincount(text.following, minlength=size)
        by_word, by_pair = self.weights
        parts = np.sqrt(1.0 - self.share**2) * _unit(words * by_word), self.share * _unit(pairs * by_pair)
        return np.concatenate(parts)


def _places(tokens_: Tokens, size: int) -> Tokens:
    """Return the place of every token among some, -1 for one that is not there."""
    places = np.full(size, -1, np.int64)
    places[tokens_] = np.arange(tokens_.size)
    return places


def _flattened(probabilities: Floats, flat: float) -> Floats:
    """Return p^-flat, and 0 for what cannot be."""
    with np.errstate(divide="ignore"):
        return np.where(probabilities > 0, probabilities**-flat, 0.0)


def _unit(counts: Floats) -> Floats:
    norm = float(np.linalg.norm(counts))
    return counts / norm if norm else counts
