"""Run every block of a page from top to bottom in one folder, as a reader would.

| Block | What is done with it |
|---|---|
| `python` | run, in one namespace for the page |
| any language, with a title | written to a file of that name; if the title is in `examples/`, it must be an excerpt |
| `sh` | each line is a command; a comment `exit code N` says how it ends |
| `text` | each line must be in the output since the last such block, numbers aside |
| `console` | not run: every line must begin with a command of `NOT_RUN` |
"""

import contextlib
import io
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from dordis.cli import main, run_app
from reproduce.commands import app
from tests.cli.in_process import run_command

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs/start/", "docs/tutorials/", "docs/howto/")
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
NOT_RUN = {
    "python3 -m venv": "makes an installation: CI does that",
    "source": "changes the reader's shell",
    "pip install": "makes an installation: CI does that",
    "cd": "changes the reader's folder",
    "flwr": "tests/integrations runs this app, with the extra flower",
    "dordis serve": "waits for clients on other machines: tests/network runs it",
    "dordis join": "waits for a server on another machine: tests/network runs it",
    "dordis report": "follows a deployed run: tests/network reports one",
    "dordis verify": "follows a deployed run: tests/cli/commands/test_ledger.py",
    "dordis audit": "takes minutes: tests/cli/commands/test_audit.py runs small ones",
    "dordis profile": "measures for a minute: tests/simulation/test_profiling.py runs a small one",
    "dordis run --preset paper-cifar10": "needs the data set: tests/simulation reads every preset",
    "dordis run --preset mnist-writers": "needs the data set: tests/simulation reads every preset",
    "python -m reproduce all": "takes long: tests/reproduce runs its parts",
    "make notebooks": "makes an environment of its own: CI runs it",
    "make attack": "takes a minute: tests/adversary/test_main.py",
    "dordis status": "follows a deployed run: tests/cli/commands/test_report.py",
}
"""Commands in `console` blocks, which are not run, and why."""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    title: str
    text: str


def is_run_whole(page: str) -> bool:
    """Tell whether a page, by its path in the repository, is run by this module."""
    return page.startswith(FOLDERS)


def list_pages() -> list[str]:
    """Return the pages that are run by this module and have blocks."""
    pages = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if is_run_whole(page) and read_blocks(page)]


def read_blocks(page: str) -> list[Block]:
    """Return the blocks of a page in their order."""
    text = (ROOT / page).read_text()
    found = [Block(*block) for block in FENCE.findall(text)]
    assert 2 * len(found) == len(re.findall(r"^```", text, re.MULTILINE)), f"{page}: a block without a language"
    return found


class PageRun:
    """A page that is being run in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.output = ""
        (folder / "examples").symlink_to(ROOT / "examples")

    def run(self, block: Block) -> None:
        """Do with one block what the table above says."""
        if block.title.startswith("examples/"):
            assert block.text in (ROOT / block.title).read_text(), f"{block.title} has other lines"
        elif block.title:
            (self.folder / block.title).write_text(block.text)
        elif block.language == "python":
            self._run_python(block.text)
        elif block.language == "sh":
            for line in block.text.splitlines():
                self._run_command(line)
        elif block.language == "console":
            for line in block.text.splitlines():
                assert line.startswith(tuple(NOT_RUN)), f"not run, and without a reason: {line}"
        else:
            assert block.language == "text", block
            self._compare(block.text)

    def _run_python(self, text: str) -> None:
        shown = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(shown):
            exec(compile(text, "page", "exec"), self.names)  # noqa: S102  it is our own page
        self.output += shown.getvalue()

    def _run_command(self, line: str) -> None:
        command, _, comment = line.partition(" #")
        program, *words = shlex.split(command)
        given = [path for word in words for path in (self._expand(word) if word.endswith("*") else [word])]
        code = int(found[1]) if (found := re.search(r"exit code (\d+)", comment)) else 0
        if given[:2] == ["-m", "reproduce"]:
            done = run_command(
                lambda: run_app(app, "python -m reproduce"), "python -m reproduce", *given[2:], cwd=self.folder
            )
        elif program == "python":
            done = run_command(lambda: run_script(given[0]), *given, cwd=self.folder)
        else:
            assert program == "dordis", line
            done = run_command(main, "dordis", *given, cwd=self.folder)
        assert done.returncode == code, (line, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, (line, done.stderr)
        self.output += done.stdout + done.stderr

    def _expand(self, word: str) -> list[str]:
        found = sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(word))
        assert found, word
        return found

    def _compare(self, text: str) -> None:
        printed = normalise(self.output)
        for line in filter(None, map(normalise, text.splitlines())):
            assert line in printed, f"not printed: {line}"
        self.output = ""


def run_script(path: str) -> None:
    """Run a script as a program."""
    runpy.run_path(path, run_name="__main__")
    sys.exit(0)


def normalise(text: str) -> str:
    """Return a text with # for numbers, and single spaces."""
    return " ".join(re.sub(r"\d[\d.,]*(e-?\d+)?", "#", text).split())
