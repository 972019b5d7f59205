"""What people read is words: no symbol is printed that is not explained there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from dordis.cli import MOVED, app, output
from dordis.cli.commands.run import find_newest_run
from dordis.cli.options import preset_names, recorded_runs
from dordis.report.facts import read_facts
from dordis.report.page import render_report
from tests.cli.in_process import dordis
from tests.report.runs import make

SYMBOLS = re.compile(r"\bT_C\b|\bU[1-6]\b|\bT\b|Delta_?2|\bcomponents?\b|\bconvene|\bt_k\b|\bc_k\b|\bsqrt\(")
ROOT = Path(__file__).parents[2]
RUN = "runs/a/20261101T1"


def helps() -> Iterator[tuple[str, str]]:
    """Return the help of every command by its name."""
    whole = typer.main.get_command(app)

    def walk(command: object, context: object, name: str) -> Iterator[tuple[str, str]]:
        yield name, command.get_help(context)
        for below, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, type(context)(inner, parent=context, info_name=below), f"{name} {below}")

    yield from walk(whole, typer.Context(whole, info_name="dordis", **whole.context_settings), "dordis")


HELPS = {name: text for name, text in helps() if name.removeprefix("dordis ") not in MOVED}
GROUPS = ("dordis", "dordis keys", "dordis ledger", "dordis plan")


@pytest.mark.parametrize("name", HELPS)
def test_help_has_no_symbols_no_backslashes_and_a_short_form(name):
    assert "\\" not in HELPS[name]
    assert not SYMBOLS.search(HELPS[name])
    assert re.search(r"-h, --help|--help\s+-h", HELPS[name]), HELPS[name]


@pytest.mark.parametrize("name", GROUPS)
def test_lists_of_commands_have_whole_sentences(name):
    described = [line for line in HELPS[name].split("Options:")[1].splitlines() if re.match(r"  [a-z]+  ", line)]
    assert described
    assert [line for line in described if line.endswith("...")] == []


@pytest.mark.parametrize("name", [name for name in HELPS if name not in GROUPS])
def test_every_command_speaks_json(name):
    assert "--json" in HELPS[name]


def test_what_takes_long_is_shown_on_a_terminal_and_nowhere_else(capsys, monkeypatch):
    with output.show_progress("a round", 2) as done:
        done()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with output.show_progress("a round", 2) as done:
        done()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "a round" in shown.err
    assert "1/2" in shown.err


def test_a_plan_has_no_symbols():
    options = "--clients 1000 --per-round 100 --rounds 50 --dim 1000 --epsilon 6 --clip-share 0.1 --selection vrf"
    for shown in (dordis("plan", *options.split()), dordis("plan", "graph", "--clients", "1000")):
        assert shown.returncode == 0, shown.stderr
        assert not SYMBOLS.search(shown.stdout), SYMBOLS.search(shown.stdout)


def test_a_report_has_no_symbols(tmp_path):
    text = re.sub(r"<style>.*?</style>", "", render_report(read_facts([make(tmp_path)])), flags=re.DOTALL)
    assert not SYMBOLS.search(text), SYMBOLS.search(text)


def test_strategies_and_modes_are_in_the_glossary():
    text = (ROOT / "docs" / "glossary.md").read_text().lower()
    for word in ("xnoise", "orig", "conservative", "early", "local", "central", "rebasing", "none"):
        assert f"*{word}*" in text
    for word in ("full", "ideal", "deployed", "semi-honest", "malicious"):
        assert f"*{word}*" in text


def test_presets_and_runs_are_completed_and_the_newest_run_is_found(tmp_path, monkeypatch):
    assert preset_names("cifar100") == ["cifar100"]
    runs = [tmp_path / "runs" / "a" / begun for begun in ("20261101T1", "20261102T1")]
    for path in (*runs, tmp_path / "runs" / "b" / "20261103T1"):
        path.mkdir(parents=True)
        (path / "manifest.json").touch()
        (path / "config.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert recorded_runs("runs/a") == ["runs/a/20261102T1", "runs/a/20261101T1"]
    assert find_newest_run(tmp_path / "runs" / "a") == runs[1]
    assert find_newest_run(runs[0]) == runs[0]
    assert find_newest_run(tmp_path) == tmp_path
    assert find_newest_run(None) is None


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        *((f"{command} --preset fem", "femnist") for command in ("run", "serve", "join", "profile", "init")),
        *((f"{words} ru", RUN) for words in ("report", "ledger verify", "ledger sum", "run --resume", "run --succeed")),
        *((f"serve {option} ru", RUN) for option in ("--resume", "--succeed")),
    ],
)
def test_every_command_completes_presets_and_runs(tmp_path, monkeypatch, capsys, words, completed):
    (tmp_path / RUN).mkdir(parents=True)
    (tmp_path / RUN / "manifest.json").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_DORDIS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"dordis {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit) as ended:
        app(prog_name="dordis")
    assert (ended.value.code, capsys.readouterr().out.split()) == (0, [completed])
