"""README and docs: every block of code is run as it stands, here or by the test that is named, or is excepted."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple, get_args, get_type_hints

import pytest

import dordis
from dordis.apps.learning.torch_model import STATE_DICT
from dordis.apps.learning.trained_model import SAVED_MODEL
from dordis.apps.text.app import FILE as LANGUAGE_MODEL
from dordis.cli import main, run_display
from dordis.cli.commands import serve
from dordis.cli.output import DONE
from dordis.ledger.entries import Opened
from dordis.network import deployment, resumable_rounds
from dordis.network.messages import SUBPROTOCOL
from dordis.privacy import skellam_noise
from dordis.records import run_records
from dordis.simulation import population
from tests.cli.in_process import run_command
from tests.page_runner import is_run_whole
from tools import reference_pages

ROOT = Path(__file__).parents[1]
only_in_releases = pytest.mark.skipif(".dev" in dordis.__version__, reason="pages name releases only")


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
    named = {str(page.relative_to(ROOT)): page.read_text() for page in pages}
    return [
        Block(name, *found) for name, text in named.items() if not is_run_whole(name) for found in fence.findall(text)
    ]


README = [block for block in blocks() if block.page == "README.md"]

RUN_BY = {
    "docs/clients.md": "tests/cli/test_plan_noise.py",
    "docs/cluster.md": "tests/reproduce/cluster/test_results.py",
    "docs/results/cluster/README.md": "tests/reproduce/cluster/test_results.py",
    "docs/evidence.md": "tests/cli/commands/test_ledger.py",
    "docs/extending.md": "tests/test_extending.py",
    "docs/extending_application.md": "tests/test_extending.py",
    "docs/extending_protocol.md": "tests/test_extending.py",
    "docs/hospitals.md": "tests/runs/test_records.py",
    "docs/identities.md": "tests/cli/commands/test_keys.py",
    "docs/reference/errors.md": "tests/test_docs.py",
}
"""Pages whose blocks are run, or compared with the code, by another test."""

NOT_RUN = {
    "docs/data.md": "what a run prints: tests/apps/learning compares it",
    "docs/deadlines.md": "two lines of a log: tests/network reads logs of real runs",
    "docs/deployment.md": "a server and its clients on machines of their own: tests/network runs both commands",
    "docs/features.md": "a part of a configuration, whose presets tests/apps/learning runs",
    "docs/flower.md": "lines of an app of Flower: tests/integrations runs whole apps, with the extra flower",
    "docs/flower_deployment.md": "a SuperLink and SuperNodes: tests/integrations runs them, with the extra flower",
    "docs/flower_trust.md": "starts a SuperNode: tests/integrations runs pinned ones, with the extra flower",
    "docs/tables.md": "a table of a reader's own: docs/tutorials/csv.md has one, with every command",
    "docs/ray.md": "needs the extra ray: tests/simulation runs it there",
    "docs/secagg_plus.md": "a loop of the shell that takes long: tests/cli/commands/test_plan.py runs one of its plans",
    "docs/results/rounds/README.md": "rewrites the page: tests/reproduce/test_results.py compares it with the code",
}
"""Pages whose blocks no test runs as they stand, and why."""

NOT_RUN_IN_README = {
    "make demo": "makes an installation of its own: a fresh clone is tried by hand before a release",
    "make test": "would run this test",
}
"""Commands of the README that are not run here, and why."""


def test_every_block_is_run_by_some_test_or_excepted_with_a_reason():
    pages = {block.page for block in blocks()} - {"README.md"}
    assert pages == {*RUN_BY, *NOT_RUN}
    assert len(NOT_RUN) == 11
    for page, test in RUN_BY.items():
        assert Path(page).name in (ROOT / test).read_text(), page


def test_every_exception_of_the_readme_is_a_command_of_it():
    commands = [command for block in README for command in block.commands if block.language != "python"]
    assert [listed for listed in NOT_RUN_IN_README if listed not in commands] == []
    assert len(commands) == 6


LONG = {
    "docs/attacks.md": "a reference, written by make pages",
    "docs/proofs/malicious.md": "a proof",
    "docs/reference/command_line.md": "a reference, written by make pages",
    "docs/reference/configuration.md": "a reference, written by make pages",
    "docs/results/paper.md": "tables, written by python -m reproduce all",
    "docs/results/rounds/README.md": "tables of results",
    "docs/wire.md": "a reference",
}
"""Pages that take longer than ten minutes to read, and why they may."""


def count_words(page: Path) -> int:
    """Return the number of words of a page, without code and addresses of links."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return sum(bool(re.search(r"\w", word)) for word in re.sub(r"\]\([^)]*\)", "]", text).split())


def test_no_page_but_references_needs_more_than_ten_minutes():
    """Ten minutes are 2,000 words."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    assert {str(page.relative_to(ROOT)) for page in pages if count_words(page) > 2000} == set(LONG)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.slow
def test_the_commands_of_the_readme_run_in_their_order(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in (command for block in README if block.language != "python" for command in block.commands):
        if command in NOT_RUN_IN_README:
            continue
        program, *words = shlex.split(command)
        done = run_command(main, program, *words, cwd=tmp_path)
        assert done.returncode == DONE, (command, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in README if block.language == "python")
    assert len(block.text.splitlines()) <= 12
    exec(compile(block.text, "README.md", "exec"), {})  # noqa: S102  it is our own page
    assert len(list(tmp_path.glob("runs/*/*/report.html"))) >= 1


@pytest.mark.parametrize(
    "page",
    [str(path.relative_to(ROOT)) for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))],
)
def test_links_to_files_lead_somewhere(page):
    home = (ROOT / page).parent
    links = re.findall(r"\]\(((?!https?:)[^)#]+)[^)]*\)", (ROOT / page).read_text())
    assert [link for link in links if not (home / link).exists()] == []


@pytest.mark.parametrize("page", reference_pages.write_pages())
def test_the_reference_is_what_the_code_says(page):
    assert (reference_pages.FOLDER / page).read_text() == reference_pages.write_pages()[page], "run make pages"


@only_in_releases
def test_every_page_that_names_the_version_names_that_of_the_package():
    version = dordis.__version__
    citation = dict(re.findall(r"^(version|date-released): (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert citation["version"] == version
    assert f"\n## {version} - {citation['date-released']}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\n| {version.rpartition('.')[0]} | yes" in (ROOT / "SECURITY.md").read_text()


@only_in_releases
@pytest.mark.parametrize("page", ["CHANGELOG.md", f"docs/releases/{dordis.__version__}.md"])
def test_a_release_states_the_versions_of_its_formats(page):
    text = (ROOT / page).read_text()
    (ledger,) = get_args(get_type_hints(Opened)["format"])
    assert f"`{SUBPROTOCOL}`" in text
    assert f"`{ledger}`" in text
    noise = re.search(r"noise format, version (\d+)", skellam_noise.__doc__)[1]
    assert re.search(rf"noise format[*|: ]+{noise}\b", text, re.IGNORECASE)


def test_every_setting_has_a_meaning():
    """A key of the configuration without a docstring would have an empty cell in the reference."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", (reference_pages.FOLDER / "configuration.md").read_text(), re.M)
    assert len(rows) > 90
    assert [key for key, meaning in rows if not meaning] == []


def test_every_exported_name_is_in_the_python_reference():
    assert sorted(name for names in reference_pages.GROUPS.values() for name in names) == sorted(dordis.__all__)


def test_the_recorded_first_minute_is_what_its_script_records_and_ended_well():
    script, recorded = (ROOT / "docs" / name for name in ("record_first_minute", "first_minute.txt"))
    typed = re.findall(r"^\$ (.*)$", recorded.read_text(), re.MULTILINE)
    assert typed == re.findall(r"^  say '(.*)'$", script.read_text(), re.MULTILINE)
    assert "20 of 20, all done" in recorded.read_text()
    assert "Traceback" not in recorded.read_text()


def test_the_page_of_formats_names_every_file_that_a_run_may_have():
    page = (ROOT / "docs" / "reference" / "formats.md").read_text()
    names = [value for value in vars(run_records).values() if re.fullmatch(r"[a-z]+\.(toml|jsonl?|npz)", str(value))]
    of_applications = [STATE_DICT, LANGUAGE_MODEL, SAVED_MODEL, "centre.npy"]
    of_servers = [
        resumable_rounds.FILE,
        deployment.SECRET,
        deployment.ARRIVALS,
        population.SECRET,
        run_display.TOKEN,
        serve.ALERTS,
    ]
    assert len(names) > 8
    for name in (*names, run_records.RECEIPTS, *of_applications, *of_servers):
        assert f"`{name}" in page, name
