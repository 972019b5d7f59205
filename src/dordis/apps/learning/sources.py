"""Where data come from: the digits that come with dordis, a file or folder, or a data set by its name.

A name is looked up in the folder `data_dir`, whose files are checked for their form; without one it is downloaded from
its official address, checked by size and SHA-256, and kept.
"""

import os
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dordis.apps.learning.data import Dataset
from dordis.apps.learning.download import Remote, fetch
from dordis.apps.learning.formats import tokens
from dordis.apps.learning.formats.cifar import read_cifar10, read_cifar100
from dordis.apps.learning.formats.idx import read_idx_folder
from dordis.apps.learning.formats.leaf import read_leaf
from dordis.apps.learning.formats.npz import read_npz
from dordis.apps.learning.formats.table import Roles, read_tables
from dordis.errors import InputError

if TYPE_CHECKING:
    from dordis.apps.learning.settings import Settings

DIGITS = "digits"
TABLES = (".csv", ".parquet")
WORDS = 30_000
"""Tokens of a text if nothing else is said: as many as ALBERT has."""


@dataclass(frozen=True)
class Named:
    """A data set by its name: the folders that its files are usually in, one of these files, and where it is from.

    It is read from its folder, by settings whose relative paths begin at another one.
    """

    read: "Callable[[Path, Settings, Path], Dataset]"
    folders: tuple[str, ...]
    probe: str
    remotes: tuple[Remote, ...] = ()
    instead: str = ""
    """What to do where there is nothing to download."""


def digits() -> Dataset:
    """Return 1,797 handwritten digits of 8 by 8 pixels from 0 to 1; `digits.md` names source, authors and licence.

    >>> data = digits()
    >>> data.x_train.shape, data.x_test.shape, data.classes
    ((1437, 64), (360, 64), 10)
    """
    with as_file(files(__package__) / "digits.npz") as path:
        data = read_npz(path)
    x, test = (part.astype(np.float64) / data.scale for part in (data.x_train, data.x_test) if part is not None)
    return Dataset(x, data.y_train, test, data.y_test, shape=(8, 8))


def load(settings: "Settings", home: Path = Path()) -> Dataset:
    """Read the data set that settings name; relative paths begin at `home`."""
    name = settings.data
    if settings.data_dir and name not in NAMED and (name == DIGITS or (home / name).exists()):
        raise InputError(
            f"app.options.data is {name}, which has no files in app.options.data_dir (--data-dir): leave that out, or "
            "choose another preset"
        )
    if name == DIGITS:
        return digits()
    if name in NAMED:
        return NAMED[name].read(located(name, settings.data_dir, home), settings, home)
    path = home / name
    if path.suffix.lower() in TABLES:
        return _tables(path, settings, home)
    if settings.client or settings.test:
        raise InputError(f"client and test are for tables, {' and '.join(TABLES)}: {name} is none")
    if path.is_dir():
        return _leaf(path, settings, home)
    if path.suffix == ".npz" or path.is_file():
        return read_npz(path, settings.target)
    raise InputError(
        f"there is no data set {name}: pass one of {', '.join((DIGITS, *NAMED))}, or the path of a .npz, .csv or "
        ".parquet file or of a folder of LEAF's files"
    )


def _tables(path: Path, settings: "Settings", home: Path) -> Dataset:
    if not settings.label:
        raise InputError(
            f"say which column of {path.name} is to be learnt: set app.options.label, and app.options.client for whose "
            "a row is"
        )
    test = None if settings.test is None else home / settings.test
    return read_tables(path, test, Roles(settings.label, settings.client, settings.target))


def located(name: str, data_dir: str, home: Path) -> Path:
    """Return the folder with the files of a data set: in `data_dir`, or downloaded."""
    data, root = NAMED[name], home / data_dir
    if not data_dir:
        return _downloaded(name, data)
    for folder in (root, *(root / inner for inner in data.folders)):
        if any(folder.glob(data.probe)):
            return folder
    places = " or ".join(f"{root / inner}" for inner in data.folders)
    raise InputError(
        f"there is no {name} in {root}: its files, such as {data.probe}, are looked for there, in {places}"
    )


def _downloaded(name: str, data: Named) -> Path:
    """Download and unpack what is not there yet."""
    if not data.remotes:
        raise InputError(
            f"{name} cannot be downloaded as it is used: {data.instead}, and pass the folder with --data-dir"
        )
    folder = cache() / name
    for remote in data.remotes:
        path = fetch(remote, folder)
        if not any(folder.rglob(data.probe)):
            _unpack(path, folder)
    return next(folder.rglob(data.probe)).parent


def cache() -> Path:
    """Return where downloads are kept: $DORDIS_DATA, or dordis in the user's cache."""
    if chosen := os.environ.get("DORDIS_DATA"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dordis"


def _unpack(path: Path, folder: Path) -> None:
    """Unpack an archive, whose members stay in the folder; anything else is left as it is."""
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)  # noqa: S202  its SHA-256 was checked, and zipfile keeps members inside


def _idx(folder: Path, settings: "Settings", home: Path, prefix: str = "", first: int = 0) -> Dataset:
    return read_idx_folder(folder, prefix, transposed=bool(prefix), first=first)


def _leaf(folder: Path, settings: "Settings", home: Path, shape: tuple[int, ...] = (), classes: int = 0) -> Dataset:
    known = settings.vocabulary
    words = tokens.hashed(known) if isinstance(known, int) else tokens.listed(home / known)
    return read_leaf(folder, words, settings.shape or shape, settings.classes or classes)


def _emnist(part: str, first: int = 0) -> Named:
    prefix = f"emnist-{part}-"
    read = partial(_idx, prefix=prefix, first=first)
    return Named(read, ("emnist", "gzip"), f"{prefix}train-images-idx3-ubyte*", _EMNIST)


def _leaf_folder(name: str, *others: str, shape: tuple[int, ...] = (), classes: int = 0) -> Named:
    how = "write them with preprocess.sh of LEAF, https://github.com/TalwalkarLab/leaf"
    folders = (name, f"{name}/data", "data", *others)
    return Named(partial(_leaf, shape=shape, classes=classes), folders, "train/*.json", instead=how)


def _cifar(number: int, probe: str, read: Callable[[Path], Dataset], size: int, sha256: str) -> Named:
    remote = Remote(f"https://www.cs.toronto.edu/~kriz/cifar-{number}-binary.tar.gz", size, sha256)
    folder = "cifar-10-batches-bin" if number == 10 else f"cifar-{number}-binary"
    return Named(lambda folder, settings, home: read(folder), (folder,), probe, (remote,))


def _idx_files(address: str, folders: tuple[str, ...], *checksums: tuple[int, str]) -> Named:
    names = "train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"
    remotes = [Remote(f"{address}/{name}-ubyte.gz", *known) for name, known in zip(names, checksums, strict=True)]
    return Named(_idx, folders, "train-images-idx3-ubyte*", tuple(remotes))


_EMNIST = (
    Remote(
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        561_753_746,
        "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
    ),
)

NAMED: dict[str, Named] = {
    "cifar10": _cifar(
        10,
        "data_batch_1.bin",
        read_cifar10,
        170_052_171,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    "cifar100": _cifar(
        100,
        "train.bin",
        read_cifar100,
        168_513_733,
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
    "mnist": _idx_files(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        ("mnist",),
        (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    "fashion-mnist": _idx_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        ("fashion-mnist", "fashion_mnist"),
        (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
    "emnist-balanced": _emnist("balanced"),
    "emnist-byclass": _emnist("byclass"),
    "emnist-digits": _emnist("digits"),
    "emnist-letters": _emnist("letters", first=1),
    "femnist": _leaf_folder("femnist", shape=(28, 28), classes=62),
    "mnist-writers": _leaf_folder("mnist-writers", "leaf-mnist", shape=(28, 28), classes=10),
    "reddit": _leaf_folder("reddit", "leaf-chat"),
    "shakespeare": _leaf_folder("shakespeare", "leaf-shakespeare"),
}
