"""A language model of words and frequent pairs: texts of users as tokens, the counts of clients, and perplexity.

A text is stored as pairs of tokens: a token and the token that follows it.  The vocabulary is public: a given list, or
the words of held-out users, who are not clients.  A vocabulary made from the clients' texts would disclose their words
without noise, and perplexities are published without noise.  So neither uses texts of clients: two disjoint groups of
held-out users give the vocabulary and the test texts.

Clients count words in a first pass, and words and pairs of frequent words in a second.  The lift of a pair is its
probability divided by the product of the probabilities of its two words.  The probabilities of words and the lifts are
estimated by posterior means under priors that suit natural language.  The noise of a count is nearly Gaussian with a
known standard deviation, so a posterior mean can be computed as a sum over a grid of values.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.apps.learning.formats import (
    BEGIN,
    END,
    LETTERS,
    PAD,
    SPECIAL,
    UNKNOWN,
    UserData,
    Vocabulary,
    letters,
    most_frequent,
    number_words,
    read_users,
    read_words,
)
from dordis.errors import InputError
from dordis.privacy.scaling import Floats

Tokens = npt.NDArray[np.int64]
TokenPairs = tuple[list[str], list[str]]
"""The words or letters of a user's text, and for each of them the word or letter that follows it."""


@dataclass(frozen=True, eq=False)
class Text:
    """A user's text: the tokens `following`, which are to be predicted, and the token `before` each of them."""

    before: Tokens
    following: Tokens


@dataclass(frozen=True)
class Symbols:
    """The numbers and names of all tokens; `said` is a text about the vocabulary and the test data for reports."""

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
        """Return a text whose words or letters are replaced by token numbers."""
        before, following = (np.array(self.vocabulary.numbers(part), np.int64) for part in written)
        return Text(before, following)

    def unknown(self, text: Text) -> int:
        """Return how many tokens in `text.following` stand for words or letters outside the vocabulary."""
        return int(np.count_nonzero(text.following == (UNKNOWN if self.special else self.size - 1)))


@dataclass(frozen=True, eq=False)
class Corpus:
    """The texts of the clients by zero-based index, and the texts of held-out users on which the model is tested."""

    symbols: Symbols
    clients: tuple[Text, ...] = field(repr=False)
    test: tuple[Text, ...] = field(repr=False)


@dataclass(frozen=True)
class Users:
    """Disjoint groups of the users of LEAF's files: clients, users who give the vocabulary, and test users.

    Of clients only the training texts are used.  All texts of the other users, who count as public, are used.
    """

    clients: dict[str, UserData] = field(repr=False)
    vocabulary: dict[str, UserData] = field(repr=False)
    test: dict[str, UserData] = field(repr=False)


def read_corpus(folder: Path, vocabulary: Path | int, population: int, seed: int) -> Corpus:
    """Return the texts of LEAF's files; `population` users are drawn as clients, and the others are held out.

    If `vocabulary` is a number n, the vocabulary is the n most frequent words of half of the held-out users, and the
    model is tested on the other half.  With a list of words, or if texts are of letters, it is tested on all.
    """
    users = draw_users(folder, population, seed, isinstance(vocabulary, int))
    symbols = read_symbols(vocabulary, users)
    return Corpus(
        symbols,
        tuple(symbols.text(_read_text(data, whole=True)) for data in users.clients.values()),
        tuple(symbols.text(_read_text(data, whole=False)) for data in users.test.values()),
    )


def draw_users(folder: Path, population: int, seed: int, needs_words: bool) -> Users:
    """Draw `population` clients among the users with training texts, and divide all other users into two groups.

    With `needs_words`, half of them give the vocabulary and half are test users.  Without it, or if the texts are
    of letters, whose alphabet is known, all of them are test users.
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
    """Return all texts of each user, in the order in which the users first occur."""
    users: dict[str, UserData] = {}
    for user, data in written:
        known = users.get(user, UserData([], []))
        users[user] = UserData(known.x + data.x, known.y + data.y)
    return users


def read_symbols(vocabulary: Path | int, users: Users) -> Symbols:
    """Return the alphabet of texts of letters; else the words of a file, or the most frequent words of public users."""
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
    """Tell whether texts are lines of letters, as in LEAF's Shakespeare, and not words, as in LEAF's Reddit."""
    return isinstance(data.x[0], str)


def _read_text(data: UserData, *, whole: bool) -> TokenPairs:
    """Return all token pairs of a user; but of lines of letters, unless `whole`, only the last pair of each line."""
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


@dataclass(frozen=True, eq=False)
class Bigrams:
    """A model of the next word: the word's probability, times the lift of the pair if the model has one for this pair.

    The products are normalised for each preceding word.  `words` are the probabilities of the words.
    """

    words: Floats = field(repr=False)
    contexts: Tokens = field(repr=False)
    columns: Tokens = field(repr=False)
    lifts: Floats = field(repr=False)
    """The lift of each pair: a row for each preceding word in `contexts`, a column for each next word in `columns`."""

    @classmethod
    def unigrams(cls, words: Floats) -> "Bigrams":
        """Return the model in which words are independent."""
        none = np.zeros(0, np.int64)
        return cls(words, none, none, np.zeros((0, 0)))

    @cached_property
    def _totals(self) -> Floats:
        """Return the normalising constant of each word in `contexts`."""
        totals: Floats = 1.0 + (self.lifts - 1.0) @ self.words[self.columns]
        return totals

    def probabilities(self, text: Text) -> Floats:
        """Return the predicted probability of each token in `text.following`."""
        found: Floats = self.words[text.following]
        row, column = (_places(part, self.words.size) for part in (self.contexts, self.columns))
        i, j = row[text.before], column[text.following]
        both, begun = (i >= 0) & (j >= 0), i >= 0
        found[both] *= self.lifts[i[both], j[both]]
        found[begun] /= self._totals[i[begun]]
        return found


def perplexities(model: Bigrams, texts: Sequence[Text]) -> tuple[float, float]:
    """Return the perplexity by user (all users have the same weight) and by token (all tokens have the same weight)."""
    losses = [-np.log(model.probabilities(text)) for text in texts if text.following.size]
    by_user = np.mean([loss.mean() for loss in losses])
    return float(np.exp(by_user)), float(np.exp(np.concatenate(losses).mean()))


def countable(symbols: Symbols) -> Floats:
    """Return a weight by token: 0 for padding and sentence beginnings, which never follow another token; else 1."""
    weights = np.ones(symbols.size)
    if symbols.special:
        weights[[PAD, BEGIN]] = 0.0
    return weights


def count_words(text: Text, size: int) -> Floats:
    """Return a client's update in the first pass: how often each of `size` tokens occurs, scaled to norm 1."""
    return _unit(np.bincount(text.following, minlength=size).astype(np.float64))


@dataclass(frozen=True, eq=False)
class PairCounts:
    """Layout of updates in the second pass, derived from the public word probabilities `words` of the first pass.

    A pair is a word in `contexts` followed by a word in `columns`.  Clients multiply the count of a word by p^-flat,
    and the count of a pair by (p q)^-flat, where p and q are the probabilities of the words.  `share` is the norm of
    the counts of pairs in an update of norm 1.
    """

    words: Floats = field(repr=False)
    contexts: Tokens = field(repr=False)
    alike: Tokens = field(repr=False)
    """For each context a word with the same frequency: the context itself, or END if the context is BEGIN."""
    columns: Tokens = field(repr=False)
    flat: float
    share: float

    @classmethod
    def from_words(cls, words: Floats, symbols: Symbols, top: int, flat: float, share: float) -> "PairCounts":
        """Construct the layout for pairs of the `top` most frequent words, and pairs after BEGIN if it is a token."""
        columns = np.argsort(-words, kind="stable")[:top]
        begin, end = ([BEGIN], [END]) if symbols.special else ([], [])
        contexts, alike = np.array([*begin, *columns]), np.array([*end, *columns])
        return cls(words, contexts, alike, columns, flat, share)

    @staticmethod
    def dim(symbols: Symbols, top: int) -> int:
        """Return the length of an update in the second pass: the number of words plus the number of pairs."""
        columns = min(top, symbols.size)
        return symbols.size + columns * (columns + int(symbols.special))

    @cached_property
    def weights(self) -> tuple[Floats, Floats]:
        """Return two vectors: the weights of the counts of words, and the weights of the counts of pairs."""
        return _flatten(self.words, self.flat), _flatten(self.independent(self.words), self.flat)

    def independent(self, words: Floats) -> Floats:
        """Return, for each pair, the product of the probabilities of its two words."""
        return np.outer(words[self.alike], words[self.columns]).ravel()

    def count(self, text: Text) -> Floats:
        """Return a client's update in the second pass, of norm 1 at most: weighted counts of words, then of pairs."""
        size, columns = self.words.size, self.columns.size
        i, j = _places(self.contexts, size)[text.before], _places(self.columns, size)[text.following]
        both = (i >= 0) & (j >= 0)
        pairs = np.bincount(i[both] * columns + j[both], minlength=self.contexts.size * columns)
        words = np.bincount(text.following, minlength=size)
        by_word, by_pair = self.weights
        parts = np.sqrt(1.0 - self.share**2) * _unit(words * by_word), self.share * _unit(pairs * by_pair)
        return np.concatenate(parts)


def _places(tokens_: Tokens, size: int) -> Tokens:
    """Return, for each token from 0 to `size` - 1, its position in `tokens_`; -1 if it is not there."""
    places = np.full(size, -1, np.int64)
    places[tokens_] = np.arange(tokens_.size)
    return places


def _flatten(probabilities: Floats, flat: float) -> Floats:
    """Return p^-flat for every probability p, and 0 where p is 0."""
    with np.errstate(divide="ignore"):
        return np.where(probabilities > 0, probabilities**-flat, 0.0)


def _unit(counts: Floats) -> Floats:
    norm = float(np.linalg.norm(counts))
    return counts / norm if norm else counts


_GRID = 200
"""Number of probabilities in the grid of the Zipf prior; the grid covers the ranks of all words."""
_ITERATIONS = 6
_NODES = np.linspace(-5.0, 5.0, 41)
"""Values of a standard normal variable at which the posterior of a lift is summed."""


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """Summed counts: `total` = unknown factor * `weights` * probabilities + noise of standard deviation `deviation`."""

    total: Floats = field(repr=False)
    deviation: float
    weights: Floats = field(repr=False)

    def factor(self, expected: Floats) -> float:
        """Return the estimated unknown factor, at least `deviation`; `expected` has weights * probabilities."""
        return max(float(self.total @ expected) / float(expected @ expected), self.deviation)


@dataclass(frozen=True)
class Zipf:
    """The prior of words: the word of rank r has a probability proportional to (r + shift)^-exponent.

    The rank of a given word is unknown: the prior gives each rank the same probability.
    """

    exponent: float = 1.4
    shift: float = 6.0

    def grid(self, size: int) -> tuple[Floats, Floats]:
        """Return a grid of values for the probability of one of `size` words, and the values' log prior weights."""
        edges = np.exp(np.linspace(0.0, np.log(size), _GRID + 1))
        words, ranks = np.diff(edges), np.sqrt(edges[1:] * edges[:-1])
        probabilities = (ranks + self.shift) ** -self.exponent
        return probabilities / (words @ probabilities), np.log(words / words.sum())


def word_probabilities(seen: Sequence[NoisyCounts], prior: Zipf) -> Floats:
    """Return the posterior mean of each word's probability (0 if all its weights are 0); `seen` has the counts by pass.

    The unknown factors of the counts (`NoisyCounts`) and the probabilities are estimated in turn, each from the other.
    """
    x, chances = prior.grid(seen[0].total.size)
    possible = np.any([sum_.weights > 0 for sum_ in seen], axis=0)
    factors = [max(float(seen[0].total.sum()), seen[0].deviation)]
    probabilities: Floats = np.zeros_like(seen[0].total)
    for _ in range(_ITERATIONS):
        likelihood = chances + sum(
            -0.5 * ((sum_.total[:, None] - factor * sum_.weights[:, None] * x) / sum_.deviation) ** 2
            for sum_, factor in zip(seen, factors, strict=False)  # at first only the factor of the first sum is known
        )
        probabilities = np.where(possible, _mean(likelihood, x), 0.0)
        probabilities /= probabilities.sum()
        factors = [sum_.factor(sum_.weights * probabilities) for sum_ in seen]
    return probabilities


def lifts(seen: NoisyCounts, independent: Floats, spread: float) -> Floats:
    """Return the posterior mean of the lift of each pair, given the noisy counts of pairs.

    The lift of a pair is its probability divided by the product of the probabilities of its two words; `independent`
    has this product for each pair.  The prior of a lift is log-normal with mean 1, and `spread` is the standard
    deviation of its logarithm.  The unknown factor of the counts (`NoisyCounts`) is estimated under the assumption
    that the probabilities of all pairs add up to the sum of `independent`.
    """
    expected = independent * seen.weights
    with np.errstate(divide="ignore", invalid="ignore"):
        unweighted = np.where(seen.weights > 0, seen.total / seen.weights, 0.0)
    factor = max(float(unweighted.sum() / independent.sum()), seen.deviation)
    x = np.exp(spread * _NODES - spread**2 / 2)
    likelihood = -0.5 * _NODES**2 - 0.5 * ((seen.total[:, None] - factor * expected[:, None] * x) / seen.deviation) ** 2
    return _mean(likelihood, x)


def _mean(log_weights: Floats, values: Floats) -> Floats:
    """Return, for each row of `log_weights`, the mean of `values` under the weights with these logarithms."""
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    mean: Floats = weights @ values / weights.sum(axis=1)
    return mean
