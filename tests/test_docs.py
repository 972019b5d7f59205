"""README and docs: every block of code is run as it stands, here or by the test that is named, or is excepted."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from dordis.cli import main, run_app
from dordis.cli.output import DONE, OVER_BUDGET
from reproduce.commands import app
from tests.cli.in_process import run_command

ROOT = Path(__file__).parents[1]


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Return the lines that a reader would type, without their comments."""
        return [line.split(" #")[0].strip() for line in self.text.splitlines() if re.match(r"[a-z]+[ -]", line)]


def blocks() -> list[Block]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [Block(str(page.relative_to(ROOT)), *found) for page in pages for found in fence.findall(page.read_text())]


PROGRAMS = {"dordis": main, "python -m reproduce": lambda: run_app(app, "python -m reproduce")}


def split_command(command: str) -> tuple[str, list[str]]:
    """Return the program of a command, one of PROGRAMS, and its arguments."""
    (program,) = (program for program in PROGRAMS if command.startswith(f"{program} "))
    return program, shlex.split(command.removeprefix(program))


README = [block for block in blocks() if block.page == "README.md"]

RUN_BY = {
    "docs/clients.md": "tests/cli/test_plan_noise.py",
    "docs/evidence.md": "tests/cli/commands/test_verify.py",
    "docs/extending.md": "tests/test_extending.py",
    "docs/hospitals.md": "tests/runs/test_records.py",
    "docs/identities.md": "tests/cli/commands/test_keys.py",
}
"""Pages whose blocks are run, or compared with the code, by another test."""

NOT_RUN = {
    "docs/data.md": "what a run prints, and a part of a configuration, whose presets tests/apps/learning runs",
    "docs/deployment.md": "a server and its clients on machines of their own: tests/network runs both commands",
    "docs/flower.md": "lines of an app of Flower: tests/integrations runs whole apps, with the extra flower",
    "docs/ray.md": "needs the extra ray: tests/simulation runs it there",
    "docs/secagg_plus.md": "a loop of the shell that takes long: tests/cli/commands/test_plan.py runs one of its plans",
    "docs/results/rounds/README.md": "rewrites the page: tests/reproduce/test_results.py compares it with the code",
}
"""Pages whose blocks no test runs as they stand, and why."""

NOT_RUN_IN_README = {
    "make demo": "makes an installation of its own: a fresh clone is tried by hand before a release",
    "make deploy-demo": "as make demo; tests/network runs examples/deployment",
    "make test": "would run this test",
    "dordis run --preset paper-cifar10": "needs the data set: tests/simulation reads every preset",
    "dordis run --preset mnist-writers": "needs the data set: tests/simulation reads every preset",
    "make attack": "takes a minute: tests/adversary/test_main.py",
    "dordis audit": "takes minutes: tests/cli/commands/test_audit.py runs small ones",
    "dordis profile": "measures for a minute: tests/cli/commands/test_profile.py runs a small one",
}
"""Commands of the README that are not run here, and why."""

FASTER = {"dordis run -c privacy.noise.kind=orig": ["-c", "simulation.fidelity=ideal"]}
"""Commands that are run with one more option, because they take long: the noise is the same."""

CODES = {"dordis run -c privacy.noise.kind=orig": OVER_BUDGET}
"""Exit codes of commands that show what goes wrong."""


def test_every_block_is_run_by_some_test_or_excepted_with_a_reason():
    pages = {block.page for block in blocks()} - {"README.md"}
    assert pages == {*RUN_BY, *NOT_RUN}
    assert len(NOT_RUN) == 6
    for page, test in RUN_BY.items():
        assert Path(page).name in (ROOT / test).read_text(), page


def test_every_exception_of_the_readme_is_a_command_of_it():
    commands = [command for block in README for command in block.commands if block.language != "python"]
    for listed in (*NOT_RUN_IN_README, *FASTER, *CODES):
        assert [command for command in commands if command.startswith(listed)], listed
    assert len(NOT_RUN_IN_README) == 8
    assert len(commands) == 22


@pytest.mark.slow
def test_the_commands_of_the_readme_run_in_their_order(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in (command for block in README if block.language != "python" for command in block.commands):
        if any(command.startswith(listed) for listed in NOT_RUN_IN_README):
            continue
        program, words = split_command(command)
        given = [path for word in words for path in (sorted(tmp_path.glob(word)) if "*" in word else [word])]
        done = run_command(PROGRAMS[program], program, *given, *FASTER.get(command, ()), cwd=tmp_path)
        assert done.returncode == CODES.get(command, DONE), (command, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in README if block.language == "python")
    exec(compile(block.text, "README.md", "exec"), {})  # noqa: S102  it is our own page
    assert len(list(tmp_path.glob("runs/*/*/report.html"))) >= 1


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_links_to_files_lead_somewhere(page):
    home = (ROOT / page).parent
    links = re.findall(r"\]\(((?!https?:)[^)#]+)[^)]*\)", (ROOT / page).read_text())
    assert [link for link in links if not (home / link).exists()] == []


def test_the_recorded_first_minute_is_what_its_script_records_and_ended_well():
    script, recorded = (ROOT / "docs" / name for name in ("record_first_minute", "first_minute.txt"))
    typed = re.findall(r"^\$ (.*)$", recorded.read_text(), re.MULTILINE)
    assert typed == re.findall(r"^  say '(.*)'$", script.read_text(), re.MULTILINE)
    assert "20 of 20, all done" in recorded.read_text()
    assert "Traceback" not in recorded.read_text()
