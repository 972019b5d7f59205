"""Partitions of the samples among clients: by the keys of the data, or as the configuration says.

No sample has two clients.  Each key of the data, such as a writer, is one client and the unit of privacy, unless the
configuration explicitly sets another partition.  `describe_unit` describes the unit for reports.
"""

from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.apps.learning.data import Dataset, Labels, Unit, Values
from dordis.errors import InputError

Indices = npt.NDArray[np.int64]
Generator = np.random.Generator


class Iid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="iid"):
    """Divide the samples at random; the sizes of any two clients differ by at most one."""

    def split(self, data: Dataset, clients: int, rng: Generator) -> list[Indices]:
        """Return the indices of each client's samples."""
        _check_count(data.y_train, clients, 1)
        return np.array_split(rng.permutation(len(data.y_train)), clients)

    def describe_unit(self, data: Dataset, clients: int) -> str:
        """Return the description of the privacy unit."""
        return describe_parts(data, clients)


class Lda(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="lda"):
    """Give each client its own mix of labels, from a Dirichlet distribution with all parameters `alpha`.

    Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019.  A small alpha gives a client
    few labels, a large one all labels.  Clients with fewer than `least` samples get samples of the largest clients.
    """

    alpha: float = 1.0
    least: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise InputError(f"alpha of the Dirichlet distribution is positive and finite, not {self.alpha}")
        if self.least < 0:
            raise InputError(f"a client has 0 samples or more, not {self.least}")

    def split(self, data: Dataset, clients: int, rng: Generator) -> list[Indices]:
        """Return the indices of each client's samples."""
        _check_count(data.y_train, clients, self.least)
        if data.target != "classification":
            raise InputError(f"mixes of labels are for classification, not for {data.target}: pass another partition")
        mixes = rng.dirichlet(np.full(data.classes, self.alpha), size=clients)
        owner = np.empty(data.y_train.size, np.int64)
        for label, weights in enumerate(mixes.T):
            held = rng.permutation(np.flatnonzero(data.y_train == label))
            owner[held] = _assign_owners(held.size, weights)
        _even_out(owner, clients, self.least, rng)
        return _by_owner(owner, clients)

    def describe_unit(self, data: Dataset, clients: int) -> str:
        """Return the description of the privacy unit."""
        return describe_parts(data, clients)


class Natural(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="natural"):
    """Each user in the data, a writer or speaker, is one client; with `some`, further users may be left out."""

    some: bool = False

    def split(self, data: Dataset, clients: int, rng: Generator) -> list[Indices]:
        """Return the indices of each client's samples."""
        keys, _, _ = data.key_counts
        check_keys(data, clients, 1, self.some)
        return _group_keys(data, clients, 1, rng if keys.size > clients else None)

    def describe_unit(self, data: Dataset, clients: int) -> str:
        """Return the description of the privacy unit."""
        return describe_groups(data, clients, 1)


class Merge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="merge"):
    """A client has the data of `keys` keys, as in the paper (three writers); with `some`, other keys take no part."""

    keys: int = 3
    some: bool = False

    def __post_init__(self) -> None:
        if self.keys < 2:
            raise InputError(f"merge needs two keys or more, not {self.keys}: for one key a client use kind 'natural'")

    def split(self, data: Dataset, clients: int, rng: Generator) -> list[Indices]:
        """Return the indices of each client's samples."""
        check_keys(data, clients, self.keys, self.some)
        return _group_keys(data, clients, self.keys, rng)

    def describe_unit(self, data: Dataset, clients: int) -> str:
        """Return the description of the privacy unit."""
        return describe_groups(data, clients, self.keys)


Partition = Iid | Lda | Natural | Merge


def default_partition(data: Dataset) -> Partition:
    """Return the default partition: by key, or else by mixes of labels, or at random for regression."""
    if data.keys is not None:
        return Natural()
    return Lda() if data.target == "classification" else Iid()


def remove_clients(data: Dataset, parts: list[Indices]) -> tuple[Dataset, str]:
    """Remove clients' inputs from the test data if other inputs remain; return the data set and a description of the
    test data.

    Test data that do not name their users stay as they are: the caller declares them public.
    """
    if data.keys is None or data.test_keys is None or data.x_test is None or data.y_test is None:
        return data, ""
    tested, said = select_test_inputs(data.test_keys, data.keys[np.concatenate(parts)], data.unit)
    test = data.x_test[tested], data.y_test[tested], data.test_keys[tested]
    return replace(data, x_test=test[0], y_test=test[1], test_keys=test[2]), said


def select_test_inputs(keys: Values, clients: Values, unit: Unit) -> tuple[npt.NDArray[np.bool_], str]:
    """Return a mask of the test inputs to use, and a description; inputs of clients are used only if there are no
    others.

    Metrics are published without noise.  Measured on inputs of clients, they are outside the guarantee.
    """
    public = ~np.isin(keys, clients)
    if not public.any():
        said = f"test data = {keys.size:,} inputs of the clients themselves: these metrics are made from clients' data"
        return ~public, f"{said} without noise, and epsilon does not cover them"
    users = unit.format_count(np.unique(keys[public]).size)
    said = f"test data = {np.count_nonzero(public):,} inputs of {users} held out, no clients among them"
    return public, said if public.all() else f"{said}; {np.count_nonzero(~public):,} inputs of clients are left out"


def check_keys(data: Dataset, clients: int, each: int, some: bool) -> None:
    """Raise InputError unless groups of `each` keys give exactly `clients` clients, or more if `some` is set."""
    keys, _, _ = data.key_counts
    there = data.unit.format_count(keys.size) + f", from {data.unit.origin}"
    possible = keys.size // each
    if clients > possible:
        raise InputError(f"there are {there}: with {each} for each client that makes {possible} clients, not {clients}")
    if clients < possible and not some:
        raise InputError(
            f"there are {there}, and privacy protects each of them. For {clients} clients some would have to be "
            f"merged or left out. Set federation.clients = {possible}, or allow it in app.options.partition: "
            '{ kind = "merge", keys = .. }, { kind = "natural", some = true }, or { kind = "iid" }'
        )


def describe_groups(data: Dataset, clients: int, each: int) -> str:
    """Return the description of clients that each have the data of `each` keys, such as writers."""
    keys, _, _ = data.key_counts
    one = data.unit.format_count(clients) if each == 1 else f"{clients:,} groups of {data.unit.format_count(each)}"
    left = keys.size - clients * each
    rest = f"; {data.unit.format_count(left)} left out" if left else ""
    return f"clients = {one}, from {data.unit.origin}{rest}"


def describe_parts(data: Dataset, clients: int) -> str:
    """Return the description of clients that are random parts of the data."""
    parts = f"clients = {clients:,} parts of the data, dealt at random"
    if data.keys is None:
        return f"{parts}: the data do not say whose they are"
    keys, _, _ = data.key_counts
    return f"{parts}, not the {data.unit.format_count(keys.size)} from {data.unit.origin}, which are not protected"


def _check_count(labels: Labels, clients: int, least: int) -> None:
    if clients < 1:
        raise InputError(f"samples are divided among one client or more, not {clients}")
    if len(labels) < clients * least:
        raise InputError(f"{len(labels)} samples are too few for {clients} clients with {least} or more each")


def _assign_owners(count: int, weights: npt.NDArray[np.float64]) -> Indices:
    """Return the client of each of `count` samples; clients get samples in proportion to `weights`, rounded."""
    total = weights.sum()
    shares = weights / total if total > 0 else np.full(weights.size, 1 / weights.size)  # tiny alphas underflow
    ends = np.rint(np.cumsum(shares) * count).astype(np.int64)
    ends[-1] = count
    return np.repeat(np.arange(weights.size), np.diff(ends, prepend=0))


def _even_out(owner: Indices, clients: int, least: int, rng: Generator) -> None:
    """Move random samples from the largest client to clients with fewer than `least`, one at a time."""
    sizes = np.bincount(owner, minlength=clients)
    for poor in np.flatnonzero(sizes < least):
        while sizes[poor] < least:
            rich = int(sizes.argmax())
            owner[rng.choice(np.flatnonzero(owner == rich))] = poor
            sizes[rich], sizes[poor] = sizes[rich] - 1, sizes[poor] + 1


def _group_keys(data: Dataset, clients: int, each: int, rng: Generator | None) -> list[Indices]:
    """Return the indices of each client's samples, if a client has `each` keys; the remaining keys have no client.

    Keys are taken in order, or at random if there is an `rng`.
    """
    keys, number, _ = data.key_counts
    order = np.arange(keys.size) if rng is None else rng.permutation(keys.size)
    owner = np.full(keys.size, clients, np.int64)
    owner[order[: clients * each]] = np.arange(clients * each) // each
    return _by_owner(owner[number], clients + 1)[:clients]


def _by_owner(owner: Indices, clients: int) -> list[Indices]:
    """Return the indices of each client's samples in ascending order, from the client of each sample."""
    sizes = np.bincount(owner, minlength=clients)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
