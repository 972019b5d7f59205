"""examples: every folder has a short README that names its files; the commands of those with code of one's own run."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.in_process import dordis

EXAMPLES = Path(__file__).parents[1] / "examples"
FOLDERS = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__")
SMALL = ("-c", "federation.clients=12", "-c", "federation.per_round=6", "-c", "federation.rounds=1", "--yes", "--json")
COMMANDS = [
    (folder, line)
    for folder in FOLDERS
    for line in re.findall(r"^dordis run .*$", (EXAMPLES / folder / "README.md").read_text(), re.MULTILINE)
]


def test_every_folder_is_listed_with_a_readme_of_about_ten_lines():
    index = (EXAMPLES / "README.md").read_text()
    for folder in FOLDERS:
        assert f"]({folder})" in index
        assert len((EXAMPLES / folder / "README.md").read_text().splitlines()) <= 24


@pytest.mark.parametrize("folder", [name for name in FOLDERS if name != "flower_app"])
def test_every_file_of_a_folder_is_in_its_readme(folder):
    readme = (EXAMPLES / folder / "README.md").read_text()
    files = {path.name for path in (EXAMPLES / folder).iterdir() if path.is_file()} - {"README.md"}
    assert [name for name in sorted(files) if name not in readme] == []


def test_examples_of_code_of_ones_own_have_commands():
    assert {folder for folder, _ in COMMANDS} == {"own_application", "own_mechanism", "own_model", "private_centre"}


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "line"), COMMANDS, ids=lambda value: value.split("=")[-1])
def test_the_command_of_a_readme_runs_with_few_clients(folder, line, tmp_path):
    if "torch" in line + (EXAMPLES / folder / named_file(line)).read_text():
        pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    shutil.copytree(EXAMPLES / folder, tmp_path / folder)
    done = dordis(*shlex.split(line)[1:], *SMALL, cwd=tmp_path / folder)
    assert done.returncode == 0, done.stderr


def named_file(line: str) -> str:
    """Return the file of the first object that a command names."""
    (module, *_) = re.findall(r"=(\w+):\w+", line)
    return f"{module}.py"


@pytest.mark.parametrize(
    ("path", "page"),
    [("own_application/heights.py", "extending_application.md"), ("own_mechanism/your_mechanism.py", "extending.md")],
)
def test_examples_are_those_of_the_pages_on_extending(path, page):
    page = (EXAMPLES.parent / "docs" / page).read_text()
    text = (EXAMPLES / path).read_text()
    assert text[text.index("class ") :].strip() in page
