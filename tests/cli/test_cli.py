"""The command line as a user meets it: exit codes, one line for a refusal, a traceback for a bug, a quick start."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import dordis
from dordis.cli import FIRST, app, exits, group_of, main
from dordis.cli.demo import DIM, simulate
from dordis.errors import InputError
from dordis.kernels.packing import unpack
from tests.cli import commands
from tests.held import HANG


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


def test_a_command_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "__init__.py": '"""Some commands."""',
        "greet_all.py": 'def greet_all(name: str, loud: bool = False):\n    """Say a name."""\n    print(name, loud)',
        "times/__init__.py": '"""Some more."""',
        "times/twice.py": 'def twice(number: int):\n    """Double a number."""\n    print(2 * number)',
    }
    for name, text in files.items():
        (tmp_path / "toys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toys" / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    group = group_of(importlib.import_module("toys"))
    shown = CliRunner().invoke(group, ["--help"]).output
    assert re.search(r"^ +greet-all +Say a name\.$", shown, re.MULTILINE)
    assert re.search(r"^ +times +Some more\.$", shown, re.MULTILINE)
    assert CliRunner().invoke(group, ["greet-all", "Ada", "--loud"]).output == "Ada True\n"
    assert CliRunner().invoke(group, ["times", "twice", "4"]).output == "8\n"


def test_the_most_used_commands_are_listed_first() -> None:
    listed = re.findall(r"^  (\w+) ", run("--help").stdout.partition("Commands:")[2], re.MULTILINE)
    assert listed[: len(FIRST)] == list(FIRST)
    assert {"ledger", "reproduce"} <= set(listed[len(FIRST) :])


def test_demo_shows_the_mean_and_its_privacy() -> None:
    shown = commands.dordis("demo", "--clients", "10", "--dropped", "2", "--epsilon", "3")
    assert shown.returncode == 0, shown.stderr
    for expected in (
        "private mean",
        "vanished at upload",
        "noise variance left / charged",
        "bytes per client",
        "3, 1e-05",
    ):
        assert expected in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize("dropped", [0, 1, 3])
def test_the_error_of_the_demo_is_the_noise_that_must_stay(dropped: int) -> None:
    outcomes = [simulate(clients=10, dropped=dropped, epsilon=1) for _ in range(6)]
    for outcome in outcomes:
        assert len(outcome.vanished) == dropped
        gone = [u for u, stage in outcome.vanished.items() if stage == "CollectInput"]
        assert outcome.output.survivors == tuple(u for u in range(1, 11) if u not in gone)
        assert outcome.output.left >= outcome.output.charged >= outcome.design.plan.variance
    ratio = np.mean([(o.mean - o.true_mean) ** 2 / o.expected_error**2 for o in outcomes])
    assert abs(ratio - 1) < 8 * np.sqrt(2 / (6 * DIM))


def test_the_demo_takes_as_many_losses_as_the_noise_tolerates() -> None:
    with pytest.raises(InputError):
        simulate(clients=6, dropped=2, epsilon=6)
    assert len(simulate(clients=6, dropped=1, epsilon=6).vanished) == 1


def test_the_server_sees_uniform_garbage() -> None:
    outcomes = [simulate(clients=5, dropped=0, epsilon=6) for _ in range(4)]
    grids = [outcome.design.mechanism.grid for outcome in outcomes]
    seen = np.concatenate([
        unpack(upload, grid.bits, grid.padded) / 2**grid.bits
        for outcome, grid in zip(outcomes, grids, strict=True) for upload in outcome.seen.values()
    ])  # fmt: skip
    assert abs(seen.mean() - 0.5) < 8 / np.sqrt(12 * seen.size)
    assert abs((seen < 0.1).mean() + (seen > 0.9).mean() - 0.2) < 8 * np.sqrt(0.16 / seen.size)


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
    shown = commands.dordis(*arguments)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert re.fullmatch(r"dordis: .+\n", shown.stderr)


def test_a_process_that_is_refused_has_the_same_exit_code() -> None:
    shown = run("nonsense")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert re.fullmatch(r"dordis: .+\n", shown.stderr)


def test_a_bug_keeps_its_traceback_and_shows_no_locals(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(clients: int, dropped: int, epsilon: float) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("dordis.cli.demo.simulate", broken)
    monkeypatch.setattr(sys, "argv", ["dordis", "demo"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(ZeroDivisionError):
        main()
    assert app.pretty_exceptions_enable is False


def test_the_exit_codes_are_one_table_in_the_help() -> None:
    shown = commands.dordis("-h").stdout
    for code, meaning in exits.MEANINGS.items():
        assert re.search(rf"^ +{code}  {re.escape(meaning)}$", shown, re.MULTILINE)


def test_every_command_has_a_short_help() -> None:
    for command in (("run",), ("mean",), ("ledger", "verify")):
        assert commands.dordis(*command, "-h").stdout == commands.dordis(*command, "--help").stdout != ""
