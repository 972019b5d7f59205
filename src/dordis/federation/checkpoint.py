"""The checkpoint of a run: the application's state after a round and the lines of that round, replaced in one step."""

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.federation.durable import replace

State = Mapping[str, npt.NDArray[Any]]
Lines = dict[str, bytes]
"""The lines of a round, by the name of the file that each belongs to."""
Content = TypeVar("Content")
_LINES = "lines"


def write(path: Path, lines: Mapping[str, bytes], state: State) -> None:
    """Write a checkpoint in place of the one before, durably when this returns."""
    check_state(state)
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **{_LINES: np.frombuffer(msgspec.json.encode(lines), np.uint8), **state})
    replace(path, archive.getvalue())


def read_state(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the application's state, or nothing if there is no checkpoint."""
    return _read(path, lambda stored: {name: stored[name] for name in stored if name != _LINES})


def read_lines(path: Path) -> Lines:
    """Return the lines of the last finished round, or nothing; the state is not read."""
    return _read(path, lambda stored: msgspec.json.decode(stored[_LINES].tobytes(), type=Lines) if stored else {})


def check_state(state: State) -> None:
    """The names in an application's state are its own, and do not mean something else in a checkpoint."""
    taken = sorted({_LINES, "file", "allow_pickle"} & state.keys())
    if taken:
        raise InputError(f"an application's state has no entry named '{taken[0]}': choose another name")


def _read(path: Path, part: Callable[[State], Content]) -> Content:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return part(stored)
    except FileNotFoundError:
        return part({})
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, msgspec.DecodeError) as error:
        raise InputError(f"the checkpoint {path} cannot be read: {error}; restore it, or start a new run") from None
