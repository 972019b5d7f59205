"""A language model by counting: a first pass counts words, a second one words and pairs of the frequent ones."""

from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from dordis.apps.learning.sources import NAMED, located
from dordis.apps.options import check_place, shared
from dordis.apps.text.corpus import Corpus, Text, read_corpus
from dordis.apps.text.estimates import Observed, Zipf, lifts, word_probabilities
from dordis.apps.text.model import Bigrams, PairCounts, count_words, countable, perplexities
from dordis.errors import InputError
from dordis.privacy.skellam import Floats
from dordis.protocols.distributed_dp import Aggregate
from dordis.rounds.app import AppClient, AppServer, RoundInfo, State, Task
from dordis.rounds.model import Numbers

FILE = "language.npz"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Say which texts are counted, and how.

    `data` is "reddit", "shakespeare", or a folder of LEAF's files in one of these two forms; `vocabulary` a file
    with a public list of words, or how many of the most frequent words of half of the held-out users (users who are
    not clients).  The other held-out users are tested; the texts of all held-out users are public.  The first
    `words` rounds count words, the others pairs of the `top` most frequent ones, too: give the run as many rounds
    that every client takes part once in each.  `zipf` and `shift` are the prior of words, `spread` that of the
    logarithm of a pair's lift; `flat` and `share` say how the second pass is weighted.
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
    """Add up noisy counts, and make of them the likeliest model."""

    def __init__(self, corpus: Corpus, settings: Settings, population: int = 0) -> None:
        self._corpus, self._settings, self._population = corpus, settings, population
        self._rounds = np.zeros(2, np.int64)
        self._variances = np.zeros(2)
        self._totals = tuple(np.zeros(dim) for dim in self.dims)
        self._words: Floats | None = None

    @classmethod
    def of(cls, task: Task) -> Self:
        """Make it from `Settings`."""
        common = _common(task)
        return cls(*common, task.population)

    @property
    def _second(self) -> int:
        """Return whether the next round is one of the second pass, as 0 or 1."""
        return int(self._rounds[0] >= self._settings.words)

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the length of updates in both passes."""
        return self._corpus.symbols.size, PairCounts.dim(self._corpus.symbols, self._settings.top)

    @property
    def dim(self) -> int:
        """Return the length of an update in the next round."""
        return self.dims[self._second]

    @property
    def model_lengths(self) -> tuple[int, ...]:
        """Return the length of the model in both passes."""
        return 0, self._corpus.symbols.size

    @property
    def unit(self) -> str:
        """Say what one client is."""
        return f"clients = {self._population:,} users of the LEAF files"

    @property
    def measured(self) -> str:
        """Say what the perplexities are over."""
        return f"perplexity over {self._corpus.symbols.said}"

    def model(self) -> Floats:
        """Return nothing in the first pass, and in the second what the first has found."""
        return self._first_words() if self._second else np.zeros(0)

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Add the counts of a round."""
        at = self._second
        self._totals[at][:] += aggregate.total
        self._variances[at] += round.deviation**2
        self._rounds[at] += 1
        self._words = None if at == 0 else self._words

    def _seen(self, at: int, part: slice, weights: Floats) -> Observed:
        """Return a part of the sum of a pass."""
        deviation = max(float(np.sqrt(self._variances[at])), 1e-9)
        return Observed(self._totals[at][part], deviation, weights)

    def _first(self) -> Observed:
        return self._seen(0, slice(None), countable(self._corpus.symbols))

    def _first_words(self) -> Floats:
        """Return the words' probabilities after the first pass, as they travel."""
        if self._words is None:
            found = word_probabilities([self._first()], self._prior)
            self._words = found.astype(self.dtype).astype(np.float64)
        return self._words

    @property
    def _prior(self) -> Zipf:
        return Zipf(self._settings.zipf, self._settings.shift)

    def learnt(self) -> Bigrams:
        """Return the model after the rounds so far."""
        if not self._rounds[0]:
            return Bigrams.unigrams(countable(self._corpus.symbols) / countable(self._corpus.symbols).sum())
        if not self._rounds[1]:
            return Bigrams.unigrams(self._first_words())
        layout, size = layout_of(self._first_words(), self._corpus, self._settings), self._corpus.symbols.size
        by_word, by_pair = layout.weights
        words = word_probabilities([self._first(), self._seen(1, slice(0, size), by_word)], self._prior)
        pairs = self._seen(1, slice(size, None), by_pair)
        found = lifts(pairs, layout.independent(words), self._settings.spread)
        return Bigrams(words, layout.contexts, layout.columns, found.reshape(layout.contexts.size, -1))

    def evaluate(self) -> dict[str, float]:
        """Return the perplexity by user and by token, with that of the words alone, and the share of unknown tokens."""
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
        """Return the model."""
        return self.learnt()

    def export(self, directory: Path) -> None:
        """Write the model, with the names of its tokens."""
        model, names = self.learnt(), np.array(self._corpus.symbols.names)
        parts = {"words": model.words, "contexts": model.contexts, "columns": model.columns, "lifts": model.lifts}
        np.savez(directory / FILE, allow_pickle=False, names=names, **parts)

    def state(self) -> State:
        """Return the sums, and how much noise is in them."""
        return {
            "words": self._totals[0],
            "pairs": self._totals[1],
            "rounds": self._rounds,
            "variances": self._variances,
        }

    def restore(self, state: State) -> None:
        """Go on from such a state."""
        self._totals = state["words"].copy(), state["pairs"].copy()
        self._rounds, self._variances = state["rounds"].copy(), state["variances"].copy()
        self._words = None


class Client(AppClient):
    """Count one's own text, in the first pass words, in the second those and pairs."""

    def __init__(self, text: Text, corpus: Corpus, settings: Settings) -> None:
        self._text, self._corpus, self._settings = text, corpus, settings

    @classmethod
    def of(cls, task: Task, place: int) -> Self:
        """Make the client at a place."""
        corpus, settings = _common(task)
        check_place(place, task.population)
        return cls(corpus.clients[place], corpus, settings)

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return the counts; the model of the round tells which pass it is."""
        size = self._corpus.symbols.size
        if not model.size:
            return count_words(self._text, size)
        if model.shape != (size,):
            raise InputError(f"the round's model is of {model.size} words, mine of {size}")
        return layout_of(np.asarray(model, np.float64), self._corpus, self._settings).count(self._text)


def layout_of(words: Floats, corpus: Corpus, settings: Settings) -> PairCounts:
    """Return what is counted in the second pass, given the public model of the first."""
    return PairCounts.of(words, corpus.symbols, settings.top, settings.flat, settings.share)


def begin(settings: Settings, task: Task) -> tuple[Corpus, Settings]:
    """Read the texts."""
    vocabulary = settings.vocabulary
    chosen = vocabulary if isinstance(vocabulary, int) else task.folder / vocabulary
    return read_corpus(folder_of(settings, task.folder), chosen, task.population, task.seed), settings


def folder_of(settings: Settings, home: Path) -> Path:
    """Return the folder of the texts, by its name or its path."""
    return located(settings.data, settings.data_dir, home) if settings.data in NAMED else home / settings.data


_common = shared(Settings, begin)
