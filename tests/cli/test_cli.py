"""The command line as a user meets it: exit codes, one line for a refusal, a traceback for a bug, a quick start."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dordis
from dordis.cli import MOVED, SECTIONS, app, build_group, main
from dordis.cli.output import EXIT_CODES
from tests.case_samples import sample_cases
from tests.cli import in_process
from tests.paused_processes import HANG


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run([sys.executable, "-m", "dordis", *arguments], capture_output=True, text=True, timeout=HANG)


def test_version_is_the_package_version() -> None:
    shown = run("--version")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"dordis {dordis.__version__}\n", "")


def test_help_lists_the_commands() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    assert re.search(r"^ +demo ", shown.stdout, re.MULTILINE)


def test_start_up_imports_nothing_heavy() -> None:
    program = "import sys; from dordis.cli import app; app(['--help'], standalone_mode=False); print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = shown.stdout.splitlines()[-1].split()
    heavy = {"numpy", "numba", "scipy", "aiohttp", "msgspec", "rich", "cryptography", "nacl", "importlib.metadata"}
    assert not heavy & set(imported)
    ours = {name for name in imported if name.startswith("dordis.") and not name.startswith("dordis.cli")}
    assert ours == {"dordis.errors"}


def test_a_file_has_one_command_or_several_or_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "__init__.py": '"""Some commands."""',
        "greet_all.py": 'def greet_all(name: str, loud: bool = False):\n    """Say a name."""\n    print(name, loud)',
        "pair.py": 'def part():\n    """Part."""\n    print("bye")\n\ndef stay():\n    """Stay."""\n    print("here")'
        "\nTOP_LEVEL = (part, stay)",
        "times.py": '"""Some more."""\n\ndef double(number: int):\n    """Double a number."""\n    print(2 * number)\n'
        'COMMANDS = {"twice": double}',
    }
    for name, text in files.items():
        (tmp_path / "toys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toys" / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    group = build_group(importlib.import_module("toys"))
    shown = CliRunner().invoke(group, ["--help"]).output
    assert re.search(r"^ +greet-all +Say a name\.$", shown, re.MULTILINE)
    assert re.search(r"^ +times +Some more\.$", shown, re.MULTILINE)
    assert CliRunner().invoke(group, ["greet-all", "Ada", "--loud"]).output == "Ada True\n"
    assert CliRunner().invoke(group, ["part"]).output == "bye\n"
    assert CliRunner().invoke(group, ["stay"]).output == "here\n"
    assert CliRunner().invoke(group, ["times", "twice", "4"]).output == "8\n"


def test_help_lists_every_command_by_its_task() -> None:
    listed = run("--help").stdout.partition("Options:")[2].partition("Exit codes:")[0]
    for title, names in SECTIONS.items():
        section = listed.partition(f"{title}:\n")[2].partition("\n\n")[0]
        assert tuple(re.findall(r"^  (\w+) ", section, re.MULTILINE)) == names
    assert "Other commands" not in listed
    assert "..." not in listed  # no help is cut at 80 columns


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("options", [(), ("epsilon", "--json"), ("--help",)])
def test_a_command_that_moved_prints_one_line(name: str, options: tuple[str, ...]) -> None:
    shown = in_process.dordis(name, *options)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, MOVED[name] + "\n", "")
    assert f"  {name} " not in in_process.dordis("--help").stdout


def test_demo_shows_the_mean_and_its_privacy() -> None:
    shown = in_process.dordis("demo", "--clients", "10", "--dropped", "2", "--epsilon", "3")
    assert shown.returncode == 0, shown.stderr
    for expected in (
        "private mean",
        "vanished at upload",
        "noise variance left / charged",
        "bytes per client",
        "3, 1e-05",
    ):
        assert expected in shown.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo", "--clients", "many"),
        ("demo", "--clients", "2"),
        ("demo", "--clients", "201"),
        ("demo", "--clients", "10", "--dropped", "9"),
        ("demo", "--dropped", "-1"),
        ("demo", "--colour"),
        ("nonsense",),
        (),
    ],
)
def test_a_bad_call_is_refused_in_one_line(arguments: tuple[str, ...]) -> None:
    shown = in_process.dordis(*arguments)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert re.fullmatch(r"dordis: .+\n", shown.stderr)


def test_a_process_that_is_refused_has_the_same_exit_code() -> None:
    shown = run("nonsense")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert re.fullmatch(r"dordis: .+\n", shown.stderr)


NOISE = {"clients": "100", "per-round": "16", "epsilon": "6", "delta": "1e-3", "rounds": "10", "dim": "1000"}
NOISE_PLAN = ["plan", "noise", *(word for name, value in NOISE.items() for word in (f"--{name}", value))]
PRINTERS = {
    "typer": ["--help"],
    "an early exit of typer": ["--version"],
    "rich": NOISE_PLAN,
    "print, written at the exit": [*NOISE_PLAN, "--json"],
}


def run_without_reader(output: int, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run a command whose standard output is a descriptor; return its exit code and standard error."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | variables
    command = [sys.executable, "-m", "dordis", *arguments]
    ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=HANG, env=kept)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("unbuffered", sample_cases(["", "1"], one_in=2))
@pytest.mark.parametrize("printer", PRINTERS)
def test_a_reader_that_is_gone_ends_a_command_in_silence(printer: str, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = run_without_reader(writer, *PRINTERS[printer], PYTHONUNBUFFERED=unbuffered)
    finally:
        os.close(writer)
    assert ended == (130, "")


@pytest.mark.parametrize("printer", sample_cases([*PRINTERS], one_in=2))
def test_output_without_room_is_one_line(printer: str) -> None:
    with open("/dev/full", "wb") as full:
        ended = run_without_reader(full.fileno(), *PRINTERS[printer])
    assert ended == (2, "dordis: cannot write: No space left on device\n")


def test_a_bug_keeps_its_traceback_and_shows_no_locals(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(clients: int, dropped: int, epsilon: float) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("dordis.cli.commands.demo.simulate_round", broken)
    monkeypatch.setattr(sys, "argv", ["dordis", "demo"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(ZeroDivisionError):
        main()
    assert app.pretty_exceptions_enable is False


def test_the_exit_codes_are_one_table_in_the_help() -> None:
    shown = in_process.dordis("-h").stdout
    for code, meaning in EXIT_CODES.items():
        assert re.search(rf"^ +{code}  {re.escape(meaning)}$", shown, re.MULTILINE)


def test_every_command_has_a_short_help() -> None:
    for command in (("run",), ("mean",), ("ledger", "verify")):
        assert in_process.dordis(*command, "-h").stdout == in_process.dordis(*command, "--help").stdout != ""
