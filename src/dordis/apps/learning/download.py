"""Download a file whose size and SHA-256 are known: what was stopped goes on, what is wrong is not kept."""

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.error import URLError
from urllib.request import Request, urlopen

from dordis.errors import InputError

_PIECE = 1 << 18
Advance = Callable[[int], None]
"""Is told how many bytes came."""

_PATIENCE = 30.0
"""Seconds without a byte after which a download has failed."""


@dataclass(frozen=True)
class Remote:
    """A file elsewhere."""

    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """Return its last part."""
        return self.url.rsplit("/", 1)[-1]


def fetch(remote: Remote, folder: Path) -> Path:
    """Return the file in a folder, downloaded if it is not there yet."""
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
            f"cannot download {remote.url}: {reason}; run it again to go on, or fetch it and pass --data-dir"
        ) from None
    check_download(part, remote)
    return part.replace(path)


def _complete(remote: Remote, part: Path) -> None:
    """Append to the part what is missing of it."""
    there = part.stat().st_size if part.exists() else 0
    if there >= remote.size:
        return
    request = Request(remote.url, headers={"Range": f"bytes={there}-"} if there else {})  # noqa: S310  from our table
    with urlopen(request, timeout=_PATIENCE) as answer:  # noqa: S310
        goes_on = answer.status == HTTPStatus.PARTIAL_CONTENT
        with part.open("ab" if goes_on else "wb") as file, _progress(remote, there if goes_on else 0) as advance:
            _copy(answer, file, remote.size - (there if goes_on else 0), advance)


def _copy(answer: BinaryIO, file: BinaryIO, most: int, advance: Advance) -> None:
    """Copy up to one byte more than is due: a file that is too long is noticed, and not taken in whole."""
    left = most + 1
    while left and (piece := answer.read(min(_PIECE, left))):
        file.write(piece)
        left -= len(piece)
        advance(len(piece))


def check_download(path: Path, remote: Remote) -> None:
    """A download has the size and the SHA-256 that it should have; if not, it is removed."""
    size = path.stat().st_size
    if size < remote.size and path.suffix == ".part":
        raise InputError(
            f"the download of {remote.url} stopped at {size:,} of {remote.size:,} bytes: run it again to go on"
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if size != remote.size or found != remote.sha256:
        path.unlink()
        raise InputError(
            f"{remote.url} came with the SHA-256 {found} and {size:,} bytes, not {remote.sha256} and {remote.size:,}: "
            "it was removed; try again, or pass files that you trust with --data-dir"
        )


@contextmanager
def _progress(remote: Remote, begun: int) -> Iterator[Advance]:
    """Show a bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(remote.name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(remote.name, total=remote.size, completed=begun)
        yield lambda count: progress.advance(task, count)
