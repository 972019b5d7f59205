"""Run commands of `dordis` in this process: a process of its own takes seconds to import what it needs."""

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dordis.cli import main


def dordis(*arguments: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """Run a command of `dordis` in a folder; return its exit code and output."""
    return run_command(main, "dordis", *arguments, cwd=cwd)


def run_command(
    entry: Callable[[], None], program: str, *arguments: object, cwd: Path | None = None
) -> CompletedProcess[str]:
    """Run the entry point of a program with arguments in a folder; return its exit code and output."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    command = [program, *map(str, arguments)]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", command)
        patch.setattr(sys, "path", [*sys.path])
        if cwd is not None:
            patch.chdir(cwd)
        with pytest.raises(SystemExit) as end:
            entry()
    shown, said = (stream.buffer.getvalue().decode() for stream in (out, err))
    return CompletedProcess(command, end.value.code or 0, shown, said)
