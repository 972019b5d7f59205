"""Who holds which sample: each is dealt to exactly one client, at random from a seed."""

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.apps.learning.data import Dataset, Labels
from dordis.errors import InputError

Indices = npt.NDArray[np.int64]
Generator = np.random.Generator


class Iid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="iid"):
    """Deal samples like cards: all clients get equally many, to one."""

    def split(self, data: Dataset, clients: int, rng: Generator) -> list[Indices]:
        """Return the samples of each client."""
        _enough(data.y_train, clients, 1)
        return np.array_split(rng.permutation(data.y_train.size), clients)


class Lda(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="lda"):
    """Give each client its own mix of labels, from a Dirichlet distribution with all parameters `alpha`.

    Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019.  A small alpha gives a client
    few labels, a large one all alike.  Nobody has fewer than `least` samples: those with most give some away.
    """

    alpha: float = 1.0
    least: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise InputError(f"alpha of the Dirichlet distribution is positive and finite, not {self.alpha}")
        if self.least < 0:
            raise InputError(f"a client has 0 samples or more, not {self.least}")

    def split(self, data: Dataset, clients: int, rng: Generator) -> list[Indices]:
        """Return the samples of each client."""
        _enough(data.y_train, clients, self.least)
        mixes = rng.dirichlet(np.full(data.classes, self.alpha), size=clients)
        owner = np.empty(data.y_train.size, np.int64)
        for label, weights in enumerate(mixes.T):
            held = rng.permutation(np.flatnonzero(data.y_train == label))
            owner[held] = _divided(held.size, weights)
        _level(owner, clients, self.least, rng)
        return _by_owner(owner, clients)


class ByKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="key"):
    """Keep together what has the same key, such as a writer; with more keys than clients, a client has several."""

    def split(self, data: Dataset, clients: int, rng: Generator) -> list[Indices]:
        """Return the samples of each client."""
        if data.keys is None:
            raise InputError("a partition by key needs a data set with the array keys, one for each input to train on")
        keys, key = np.unique(data.keys, return_inverse=True)
        if keys.size < clients:
            raise InputError(f"there are {keys.size} keys for {clients} clients: each needs one")
        dealt = np.empty(keys.size, np.int64)
        dealt[rng.permutation(keys.size)] = np.arange(keys.size) % clients
        return _by_owner(dealt[key.reshape(-1)], clients)


Partition = Iid | Lda | ByKey


def _enough(labels: Labels, clients: int, least: int) -> None:
    if clients < 1:
        raise InputError(f"samples are dealt to a client or more, not to {clients}")
    if labels.size < clients * least:
        raise InputError(f"{labels.size} samples are too few for {clients} clients with {least} or more each")


def _divided(count: int, weights: npt.NDArray[np.float64]) -> Indices:
    """Return the owners of `count` samples in proportion to the weights, each within one sample of its due."""
    total = weights.sum()
    shares = weights / total if total > 0 else np.full(weights.size, 1 / weights.size)  # tiny alphas underflow
    ends = np.rint(np.cumsum(shares) * count).astype(np.int64)
    ends[-1] = count
    return np.repeat(np.arange(weights.size), np.diff(ends, prepend=0))


def _level(owner: Indices, clients: int, least: int, rng: Generator) -> None:
    """Move samples, one at a time and drawn at random, from whoever has most to those with fewer than `least`."""
    sizes = np.bincount(owner, minlength=clients)
    for poor in np.flatnonzero(sizes < least):
        while sizes[poor] < least:
            rich = int(sizes.argmax())
            owner[rng.choice(np.flatnonzero(owner == rich))] = poor
            sizes[rich], sizes[poor] = sizes[rich] - 1, sizes[poor] + 1


def _by_owner(owner: Indices, clients: int) -> list[Indices]:
    """Return the samples of each client, in ascending order."""
    sizes = np.bincount(owner, minlength=clients)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
