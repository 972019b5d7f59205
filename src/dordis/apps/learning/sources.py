"""Load data: the data that come with the package, a file or folder of the user, or a public data set by name.

Files of a public data set are read from the folder `data_dir`.  If `data_dir` is not set, the files are downloaded from
a public address, checked by size and SHA-256, and cached.  The files of LEAF's data sets cannot be downloaded.
"""

import hashlib
import os
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np

from dordis.apps.learning.formats import (
    hash_words,
    number_words,
    read_cifar10,
    read_cifar100,
    read_idx_folder,
    read_leaf,
    read_npz,
    read_words,
)
from dordis.apps.learning.partitioned_data import Dataset, Unit, check_dataset
from dordis.apps.tables.columns import SUFFIXES, as_columns
from dordis.apps.tables.description import Table
from dordis.apps.tables.encoding import Encoder
from dordis.apps.tables.synthetic import HOSPITALS, draw_hospitals
from dordis.errors import InputError

if TYPE_CHECKING:
    from dordis.apps.learning.settings import Settings


_PIECE = 1 << 18
Advance = Callable[[int], None]
"""A function that is called with the number of bytes that arrived since its last call."""

_PATIENCE = 30.0
"""Number of seconds without a received byte after which a download fails."""


@dataclass(frozen=True)
class Remote:
    """A file to download: its address, its size in bytes, and its SHA-256."""

    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """Return the file name, which is the last part of the address."""
        return self.url.rsplit("/", 1)[-1]


def fetch(remote: Remote, folder: Path) -> Path:
    """Return the path of a remote file in `folder`; download it if it is missing, and check its size and SHA-256."""
    path = folder / remote.name
    if path.is_file():
        check_download(path, remote)
        return path
    part = path.with_name(f"{path.name}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _complete(remote, part)
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"cannot download {remote.url}: {reason}; try again to continue, or fetch it and pass --data-dir"
        ) from None
    check_download(part, remote)
    return part.replace(path)


def _complete(remote: Remote, part: Path) -> None:
    """Append the missing bytes to a partial download."""
    there = part.stat().st_size if part.exists() else 0
    if there >= remote.size:
        return
    request = Request(remote.url, headers={"Range": f"bytes={there}-"} if there else {})  # noqa: S310  a known URL
    with urlopen(request, timeout=_PATIENCE) as answer:  # noqa: S310
        goes_on = answer.status == HTTPStatus.PARTIAL_CONTENT
        with part.open("ab" if goes_on else "wb") as file, _progress(remote, there if goes_on else 0) as advance:
            _copy(answer, file, remote.size - (there if goes_on else 0), advance)


def _copy(answer: BinaryIO, file: BinaryIO, most: int, advance: Advance) -> None:
    """Copy at most `most` + 1 bytes; the additional byte shows `check_download` that a file is too long."""
    left = most + 1
    while left and (piece := answer.read(min(_PIECE, left))):
        file.write(piece)
        left -= len(piece)
        advance(len(piece))


def check_download(path: Path, remote: Remote) -> None:
    """Raise InputError if a downloaded file has the wrong size or SHA-256.

    A wrong file is removed, but the beginning of an interrupted download (.part) is kept, to be continued.
    """
    size = path.stat().st_size
    if size < remote.size and path.suffix == ".part":
        raise InputError(
            f"the download of {remote.url} stopped at {size:,} of {remote.size:,} bytes: try again to continue"
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if size != remote.size or found != remote.sha256:
        path.unlink()
        raise InputError(
            f"{remote.url} has the SHA-256 {found} and {size:,} bytes, not {remote.sha256} and {remote.size:,}: "
            "it was removed; try again, or pass files that you trust with --data-dir"
        )


@contextmanager
def _progress(remote: Remote, begun: int) -> Iterator[Advance]:
    """Show a progress bar, from `begun` bytes on, if standard error is a terminal; yield a function that adds bytes."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(remote.name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(remote.name, total=remote.size, completed=begun)
        yield lambda count: progress.advance(task, count)


DIGITS, MADE_UP = "digits", "hospitals"
"""Data that come with the package: handwritten digits, and made-up patients of ten hospitals."""
PATIENTS = 200
"""Number of made-up patients of each hospital."""
WORDS = 30_000
"""Default number of tokens of a vocabulary; ALBERT has the same number."""


@dataclass(frozen=True)
class NamedData:
    """A public data set that a configuration can name.

    `read` returns the data set; its arguments are the folder of the files, the settings, and the folder of the
    configuration.  Its files are in the first folder, of `data_dir` and the subfolders `folders` of `data_dir`, that
    has a file matching the pattern `probe`.  `remotes` are the files to download.
    """

    read: "Callable[[Path, Settings, Path], Dataset]"
    folders: tuple[str, ...]
    probe: str
    remotes: tuple[Remote, ...] = ()
    instead: str = ""
    """Instructions for getting the files if dordis cannot download them."""


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


def hospitals(record: str = "") -> Dataset:
    """Return the data set of the made-up patients of ten hospitals, with other made-up patients as test data.

    If `record` is the name of a column, rows with the same id in this column are one record.
    """
    test = draw_hospitals(1, 1000, seed=2)
    del test["hospital"]
    return read_tables(draw_hospitals(10, PATIENTS, seed=1), test, HOSPITALS, record)


def load(settings: "Settings", home: Path = Path(), record: str = "") -> Dataset:
    """Return the data set that the settings name; `record` is the column with the record ids, empty if there is none.

    Paths in the settings are relative to `home`.  Raise InputError if there is no such data set.
    """
    name = settings.data
    if name == MADE_UP:
        return hospitals(record)
    if record and (home / name).suffix.lower() not in SUFFIXES:
        raise InputError(f"privacy.record = '{record}' names a column of a table; {name} is no table: leave it out")
    if settings.data_dir and name not in DATA_SETS and (name == DIGITS or (home / name).exists()):
        raise InputError(
            f"app.options.data is {name}, which is not read from app.options.data_dir (--data-dir): leave that out, or "
            "choose another preset"
        )
    if name == DIGITS:
        return digits()
    if name in DATA_SETS:
        return DATA_SETS[name].read(find_folder(name, settings.data_dir, home), settings, home)
    path = home / name
    if path.suffix.lower() in SUFFIXES:
        return _tables(path, settings, home, record)
    if settings.table or settings.client or settings.test:
        raise InputError(f"table, client and test are for tables ({', '.join(SUFFIXES)}), and {name} is not one")
    if path.is_dir():
        return _leaf(path, settings, home)
    if path.suffix == ".npz" or path.is_file():
        return read_npz(path, settings.target)
    raise InputError(
        f"there is no data set {name}: pass one of {', '.join((DIGITS, MADE_UP, *DATA_SETS))}, or the path of a .npz, "
        ".csv or .parquet file or of a folder of LEAF's files"
    )


def read_tables(train: Any, test: Any, table: Table, record: str = "") -> Dataset:
    """Return the data set with the training rows `train` and the public test rows `test`, described by `table`.

    Each of the two is a path, a DataFrame or a mapping of columns; `test` may be None.  If `record` is the name of a
    column, rows with the same id in this column are one record.
    """
    columns = as_columns(train, "the table")
    encoder = Encoder.from_columns(table, columns, record)
    rows = encoder.encode(columns, columns.where, needs_record=True)
    if not len(rows.y):
        raise InputError(f"{columns.where} has no rows")
    encoder.check_informative(columns)
    keys = np.arange(len(rows.y)) if rows.clients is None else rows.clients
    unit = Unit("row", "the table, each row one client") if table.client is None else column_unit(table.client)
    data: dict[str, Any] = {"x_train": rows.x, "y_train": rows.y, "keys": keys, "unit": unit, "records": rows.records}
    if test is not None:
        tested = encoder.encode(test, "the test table", needs_client=False, tests=True)
        data |= {"x_test": tested.x, "y_test": tested.y, "test_keys": tested.clients}
    return check_dataset(Dataset(**data, target=table.target, outputs=encoder.outputs, encoder=encoder))


def column_unit(client: str) -> Unit:
    """Return the noun and the origin of the clients of a table; `client` is the name of the column of clients."""
    return Unit(client, f"the column {client}")


def _tables(path: Path, settings: "Settings", home: Path, record: str) -> Dataset:
    table = settings.table
    if table is None and settings.label:
        table = Table(label=settings.label, client=settings.client)
    if not path.exists():
        raise InputError(f"there is no file {path}")
    if table is None:
        raise InputError(
            f"{path.name} needs a description, [app.options.table] with label, client, ranges and categories: "
            f"dordis init --data {path.name} writes one to fill in"
        )
    return read_tables(path, None if settings.test is None else home / settings.test, table, record)


def find_folder(name: str, data_dir: str, home: Path) -> Path:
    """Return the folder with the files of the public data set `name`: `data_dir`, relative to `home`, or a subfolder.

    If `data_dir` is empty, download the files and return their folder.  Raise InputError if the files are not found.
    """
    data, root = DATA_SETS[name], home / data_dir
    if not data_dir:
        return _download(name, data)
    for folder in (root, *(root / inner for inner in data.folders)):
        if any(folder.glob(data.probe)):
            return folder
    places = " or ".join(f"{root / inner}" for inner in data.folders)
    raise InputError(f"there is no {name} in {root}: its files, such as {data.probe}, must be there, in {places}")


def _download(name: str, data: NamedData) -> Path:
    """Download and unpack the missing files of a named data set; return their folder."""
    if not data.remotes:
        raise InputError(
            f"{name} is not offered in the form that dordis reads: {data.instead}, and pass the folder with --data-dir"
        )
    folder = cache() / name
    for remote in data.remotes:
        path = fetch(remote, folder)
        if not any(folder.rglob(data.probe)):
            _unpack(path, folder)
    return next(folder.rglob(data.probe)).parent


def cache() -> Path:
    """Return the folder of downloads: $DORDIS_DATA if it is set, else the folder `dordis` in the user's cache."""
    if chosen := os.environ.get("DORDIS_DATA"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dordis"


def _unpack(path: Path, folder: Path) -> None:
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
    words = hash_words(known) if isinstance(known, int) else number_words(read_words(home / known))
    return read_leaf(folder, words, settings.shape or shape, settings.classes or classes)


def _emnist(part: str, first: int = 0) -> NamedData:
    prefix = f"emnist-{part}-"
    read = partial(_idx, prefix=prefix, first=first)
    return NamedData(read, ("emnist", "gzip"), f"{prefix}train-images-idx3-ubyte*", _EMNIST)


def _leaf_folder(name: str, *others: str, shape: tuple[int, ...] = (), classes: int = 0) -> NamedData:
    how = "write them with preprocess.sh of LEAF, https://github.com/TalwalkarLab/leaf"
    folders = (name, f"{name}/data", "data", *others)
    return NamedData(partial(_leaf, shape=shape, classes=classes), folders, "train/*.json", instead=how)


def _cifar(number: int, probe: str, read: Callable[[Path], Dataset], size: int, sha256: str) -> NamedData:
    remote = Remote(f"https://www.cs.toronto.edu/~kriz/cifar-{number}-binary.tar.gz", size, sha256)
    folder = "cifar-10-batches-bin" if number == 10 else f"cifar-{number}-binary"
    return NamedData(lambda folder, settings, home: read(folder), (folder,), probe, (remote,))


def _idx_files(address: str, folders: tuple[str, ...], *checksums: tuple[int, str]) -> NamedData:
    names = "train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"
    remotes = [Remote(f"{address}/{name}-ubyte.gz", *known) for name, known in zip(names, checksums, strict=True)]
    return NamedData(_idx, folders, "train-images-idx3-ubyte*", tuple(remotes))


_EMNIST = (
    Remote(
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        561_753_746,
        "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
    ),
)

DATA_SETS: dict[str, NamedData] = {
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
