"""Run commands of `dordis` in this process: a process of its own takes seconds to import what it needs."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dordis.cli import main


def dordis(*arguments: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """Run a command, in a folder; return its exit code and what it wrote."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    command = ["dordis", *map(str, arguments)]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", command)
        patch.setattr(sys, "path", [*sys.path])
        if cwd is not None:
            patch.chdir(cwd)
        with pytest.raises(SystemExit) as end:
            main()
    shown, said = (stream.buffer.getvalue().decode() for stream in (out, err))
    return CompletedProcess(command, end.value.code or 0, shown, said)
