"""A language model from counts: clients count words in a first pass, then words and pairs of frequent words."""

from pathlib import Path
from typing import ClassVar, Self

import msgspec
import numpy as np

from dordis.apps import build_once, check_place
from dordis.apps.learning.sources import DATA_SETS, find_folder
from dordis.apps.text.model import (
    Bigrams,
    Corpus,
    NoisyCounts,
    PairCounts,
    Text,
    Zipf,
    count_words,
    countable,
    lifts,
    perplexities,
    read_corpus,
    word_probabilities,
)
from dordis.errors import InputError
from dordis.privacy.scaling import Floats
from dordis.protocols.encoded_sums import Aggregate
from dordis.rounds.app import AppClient, AppServer, RoundInfo, State, Task
from dordis.rounds.model import Numbers

FILE = "language.npz"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a language model from counts.

    `data` is "reddit" or "shakespeare", whose files are in the folder `data_dir`, or the path of a folder of files in
    the format of one of these two data sets of LEAF.  `vocabulary` is a file with a public list of words, or a number
    n, which stands for the n most frequent words of half of the held-out users (users who are not clients).  Metrics
    are measured on the other held-out users; with a list of words, on all.  The texts of held-out users are public.

    The first `words` rounds are the first pass, in which clients count words.  The later rounds are the second pass, in
    which clients also count pairs of the `top` most frequent words.  Choose the number of rounds such that every client
    takes part once in each pass.  The prior of words is a Zipf law: the word of rank r has a probability proportional
    to (r + `shift`)^-`zipf`.  The lift of a pair is its probability divided by the product of the probabilities of its
    words; `spread` is the standard deviation of the lift's logarithm under its prior.  In the second pass clients
    multiply the count of a word by p^-`flat`, and the count of a pair by (p q)^-`flat`, where p and q are the
    probabilities of the words; `share` is the norm of the weighted counts of pairs in an update of norm 1.
    """

    data: str = "reddit"
    data_dir: str = ""
    vocabulary: str | int = 10_000
    words: int = 10
    top: int = 100
    zipf: float = 1.4
    shift: float = 6.0
    spread: float = 1.75
    flat: float = 0.3
    share: float = 0.7

    def __post_init__(self) -> None:
        if self.words < 1 or self.top < 1 or (isinstance(self.vocabulary, int) and self.vocabulary < 1):
            raise InputError("words, top and the size of the vocabulary are 1 or more")
        if not 0 < self.share < 1 or self.flat < 0 or min(self.zipf, self.shift, self.spread) <= 0:
            raise InputError("share lies between 0 and 1, flat is 0 or more, and zipf, shift and spread are above 0")


class Server(AppServer):
    """A server that adds up the noisy counts of each pass, and estimates the language model from the sums."""

    evaluates_beside: ClassVar[bool] = True

    def __init__(self, corpus: Corpus, settings: Settings, population: int = 0) -> None:
        self._corpus, self._settings, self._population = corpus, settings, population
        self._rounds = np.zeros(2, np.int64)
        self._variances = np.zeros(2)
        self._totals = tuple(np.zeros(dim) for dim in self.dims)
        self._words: Floats | None = None

    @classmethod
    def from_task(cls, task: Task) -> Self:
        common = _common(task)
        return cls(*common, task.population)

    @property
    def _second(self) -> int:
        """Return 1 if the next round belongs to the second pass, else 0."""
        return int(self._rounds[0] >= self._settings.words)

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the lengths of updates: counts of words in the first pass, of words and pairs in the second."""
        return self._corpus.symbols.size, PairCounts.dim(self._corpus.symbols, self._settings.top)

    @property
    def dim(self) -> int:
        return self.dims[self._second]

    @property
    def model_lengths(self) -> tuple[int, ...]:
        """Return the length of the public model in each pass: 0 in the first, the number of words in the second."""
        return 0, self._corpus.symbols.size

    @property
    def unit(self) -> str:
        return f"clients = {self._population:,} users of the LEAF files"

    @property
    def measured(self) -> str:
        """Return a text about the vocabulary and the test data, without which a perplexity says little."""
        return f"perplexity over {self._corpus.symbols.said}"

    def model(self) -> Floats:
        """Return an empty model in the first pass; in the second, the probabilities of words from the first."""
        return self._first_words() if self._second else np.zeros(0)

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Add the noisy counts of a round, and the variance of their noise, to the totals of the current pass."""
        at = self._second
        self._totals[at][:] += aggregate.total
        self._variances[at] += round.deviation**2
        self._rounds[at] += 1
        self._words = None if at == 0 else self._words

    def _observe(self, at: int, part: slice, weights: Floats) -> NoisyCounts:
        """Return the coordinates `part` of the summed counts of the pass `at`: 0 is the first pass, 1 the second.

        `weights` are the weights with which clients multiplied these counts.
        """
        deviation = max(float(np.sqrt(self._variances[at])), 1e-9)
        return NoisyCounts(self._totals[at][part], deviation, weights)

    def _first(self) -> NoisyCounts:
        return self._observe(0, slice(None), countable(self._corpus.symbols))

    def _first_words(self) -> Floats:
        """Return the probabilities of words estimated in the first pass, rounded to 32 bits as clients receive them."""
        if self._words is None:
            found = word_probabilities([self._first()], self._prior)
            self._words = found.astype(self.dtype).astype(np.float64)
        return self._words

    @property
    def _prior(self) -> Zipf:
        return Zipf(self._settings.zipf, self._settings.shift)

    def learnt(self) -> Bigrams:
        """Return the language model that is estimated from the rounds so far."""
        if not self._rounds[0]:
            return Bigrams.unigrams(countable(self._corpus.symbols) / countable(self._corpus.symbols).sum())
        if not self._rounds[1]:
            return Bigrams.unigrams(self._first_words())
        layout, size = pair_layout(self._first_words(), self._corpus, self._settings), self._corpus.symbols.size
        by_word, by_pair = layout.weights
        words = word_probabilities([self._first(), self._observe(1, slice(0, size), by_word)], self._prior)
        pairs = self._observe(1, slice(size, None), by_pair)
        found = lifts(pairs, layout.independent(words), self._settings.spread)
        return Bigrams(words, layout.contexts, layout.columns, found.reshape(layout.contexts.size, -1))

    def evaluate(self) -> dict[str, float]:
        """Return the perplexities by user and by token, and the share of unknown tokens in the test data.

        Return no metrics if there are no test data.  The metrics `unigram_..` are perplexities of the model without
        pairs, in which words are independent.
        """
        if not self._corpus.test:
            return {}
        model, texts = self.learnt(), self._corpus.test
        (user, token), (user_words, token_words) = (
            perplexities(one, texts) for one in (model, Bigrams.unigrams(model.words))
        )
        unknown = sum(map(self._corpus.symbols.unknown, texts)) / sum(text.following.size for text in texts)
        return {
            "perplexity_user": user,
            "perplexity_token": token,
            "unigram_perplexity_user": user_words,
            "unigram_perplexity_token": token_words,
            "unknown": unknown,
        }

    def result(self) -> Bigrams:
        return self.learnt()

    def export(self, directory: Path) -> None:
        """Write the language model, with the names of its tokens, to the file `FILE`."""
        model, names = self.learnt(), np.array(self._corpus.symbols.names)
        parts = {"words": model.words, "contexts": model.contexts, "columns": model.columns, "lifts": model.lifts}
        np.savez(directory / FILE, allow_pickle=False, names=names, **parts)

    def state(self) -> State:
        """Return, for each pass, the summed counts, the number of rounds and the variance of the summed noise."""
        return {
            "words": self._totals[0],
            "pairs": self._totals[1],
            "rounds": self._rounds,
            "variances": self._variances,
        }

    def restore(self, state: State) -> None:
        self._totals = state["words"].copy(), state["pairs"].copy()
        self._rounds, self._variances = state["rounds"].copy(), state["variances"].copy()
        self._words = None


class Client(AppClient):
    """A client that counts the words of its text in the first pass, and words and pairs in the second pass."""

    def __init__(self, text: Text, corpus: Corpus, settings: Settings) -> None:
        self._text, self._corpus, self._settings = text, corpus, settings

    @classmethod
    def from_task(cls, task: Task, place: int) -> Self:
        corpus, settings = _common(task)
        check_place(place, task.population)
        return cls(corpus.clients[place], corpus, settings)

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return counts of words if the round's model is empty (first pass), else counts of words and pairs."""
        size = self._corpus.symbols.size
        if not model.size:
            return count_words(self._text, size)
        if model.shape != (size,):
            raise InputError(f"the round's model has {model.size} words, this client's vocabulary {size}")
        return pair_layout(np.asarray(model, np.float64), self._corpus, self._settings).count(self._text)


def pair_layout(words: Floats, corpus: Corpus, settings: Settings) -> PairCounts:
    """Return the layout of updates in the second pass; `words` are the probabilities estimated in the first pass."""
    return PairCounts.from_words(words, corpus.symbols, settings.top, settings.flat, settings.share)


def prepare_counting(settings: Settings, task: Task) -> tuple[Corpus, Settings]:
    """Return the corpus that the settings name, and the settings unchanged, so that `build_once` shares both."""
    vocabulary = settings.vocabulary
    chosen = vocabulary if isinstance(vocabulary, int) else task.folder / vocabulary
    return read_corpus(find_texts(settings, task.folder), chosen, task.population, task.seed), settings


def find_texts(settings: Settings, home: Path) -> Path:
    """Return the folder of texts: of the data set `settings.data`, or the path `settings.data` relative to `home`."""
    return find_folder(settings.data, settings.data_dir, home) if settings.data in DATA_SETS else home / settings.data


_common = build_once(Settings, prepare_counting)
