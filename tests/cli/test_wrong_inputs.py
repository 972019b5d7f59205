"""Fifty wrong inputs, given to the installed command: one line each, the right exit code, and nothing lost."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from dordis.cli.exits import FOUND, OVER_BUDGET, REFUSED
from tests.cli.commands import dordis as in_this_process
from tests.held import HANG

IDEAL = ("-c", "simulation.fidelity=ideal")
WRONG = [
    ("",),
    ("trian",),
    ("run", "--epsilonn", "3"),
    ("run", "absent.toml"),
    ("run", "bad.toml"),
    ("run", "numbers.csv"),
    ("run", "--preset", "absent"),
    ("run", "--resume", "absent"),
    ("run", "--resume", "absent", "--rounds", "3"),
    ("run", "--succeed", "absent"),
    ("run", "--epsilon", "much"),
    ("run", "--epsilon", "-1"),
    ("run", "--epsilon", "nan"),
    ("run", "--rounds", "0"),
    ("run", "--clients", "0"),
    ("run", "--clients", "2"),
    ("run", "--name", "../elsewhere"),
    ("run", "--output", "/dev/null/runs"),
    ("run", "-c", "privacy.epsilom=3"),
    ("run", "-c", "privacy.epsilon"),
    ("run", "-c", "privacy.delta=2"),
    ("run", "-c", "privacy.noise.kind=xnoisy"),
    ("run", "-c", "privacy.mechanism=nowhere:Mine"),
    ("run", "-c", "protocol.threshold=200"),
    ("run", "-c", "protocol.tolerance=60"),
    ("run", "-c", "protocol.mode=friendly"),
    ("run", "-c", "protocol.use=nothing"),
    ("run", "-c", "federation.selection=mine"),
    ("run", "-c", "app.options.lrr=1"),
    ("run", "-c", "app.options.lr=fast"),
    ("run", "-c", "app.options.data=absent.npz"),
    ("run", "-c", "app.options.data=empty.csv"),
    ("run", "-c", "app.options.model=nowhere:Net"),
    ("run", "-c", "app.options.model=needs:Net"),
    ("run", "-c", "app.options.model=wrong:Net"),
    ("run", "-c", "simulation.dropout.rate=2"),
    ("run", *IDEAL, "-c", "app.options.lr=1e308", "-c", "app.options.epochs=50"),
    ("report", "absent"),
    ("report", "numbers.csv"),
    ("ledger", "verify", "absent"),
    ("ledger", "verify", "numbers.csv"),
    ("mean", "absent.csv", "--epsilon", "1"),
    ("mean", "empty.csv", "--epsilon", "1"),
    ("mean", "gaps.csv", "--epsilon", "1", "--bounds", "0,9"),
    ("mean", "numbers.csv", "--epsilon", "1", "--bounds", "9,0"),
    ("mean", "numbers.csv", "--epsilon", "1", "--columns", "absent"),
    ("mean", "numbers.csv", "--epsilon", "1", "--fidelity", "real"),
    ("mean", "numbers.csv", "--epsilon", "1", "--bounds", "0,9", "--ledger", "."),
    ("mean", "numbers.csv", "--epsilon", "1", "--bounds", "0,9", "--ledger", "absent/ledger.jsonl"),
    ("histogram", "numbers.csv", "--epsilon", "1", "--bins", "1000000000000", "--bounds", "0,9"),
    ("histogram", "numbers.csv", "--epsilon", "1"),
    ("plan", "--clients", "1000", "--per-round", "2000", "--rounds", "5", "--dim", "10", "--epsilon", "6"),
    ("init", "bad.toml"),
]

QUICK = (("trian",), ("run", "--epsilon", "much"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that are wrong, and one that is right."""
    home = tmp_path_factory.mktemp("mistakes")
    (home / "bad.toml").write_text("[privacy\nepsilon = 3\n")
    (home / "empty.csv").write_text("")
    (home / "numbers.csv").write_text("value\n" + "\n".join(map(str, range(10))) + "\n")
    (home / "gaps.csv").write_text("value\n1\n\n2\nnan\n3\n4\n")
    (home / "needs.py").write_text("import no_such_library\n")
    (home / "wrong.py").write_text("class Net(:\n")
    return home


def dordis(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = shutil.which("dordis", path=Path(sys.executable).parent)
    assert command, "dordis is not installed beside this python"
    return subprocess.run([command, *arguments], cwd=cwd, capture_output=True, text=True, timeout=HANG)


def test_there_are_more_than_fifty() -> None:
    assert len(set(WRONG)) == len(WRONG) > 50


def all_but_a_few_slow() -> list[ParameterSet]:
    """Return all of them; starting a process for each takes long, so that most wait for the slow tests."""
    marks = {arguments: () if arguments in QUICK else (pytest.mark.slow,) for arguments in WRONG}
    return [pytest.param(arguments, marks=mark, id=" ".join(arguments)) for arguments, mark in marks.items()]


@pytest.mark.parametrize("arguments", all_but_a_few_slow())
def test_a_wrong_input_is_one_line_and_nothing_is_lost(folder, arguments):
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    done = dordis(*filter(None, arguments), cwd=folder)
    assert (done.returncode, done.stdout) == (REFUSED, "") or "1e308" in " ".join(arguments)
    assert done.returncode == REFUSED
    lines = [line for line in done.stderr.splitlines() if "compiling kernels" not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("dordis: ")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.slow
def test_a_query_beyond_its_budget_has_its_own_code(folder):
    first = ("mean", "numbers.csv", "--epsilon", "1", "--bounds", "0,10", "--ledger", "spent.jsonl")
    assert dordis(*first, "--budget", "1.2", cwd=folder).returncode == 0
    kept = (folder / "spent.jsonl").read_bytes()
    again = dordis(*first, cwd=folder)
    assert (again.returncode, again.stderr.count("\n"), again.stdout) == (OVER_BUDGET, 1, "")
    assert (folder / "spent.jsonl").read_bytes() == kept
    assert OVER_BUDGET not in (REFUSED, FOUND)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--clients", "2"), "federation.per_round = 50 is more than federation.clients = 2"),
        (("-c", "protocol.threshold=200"), "protocol.threshold = 200 has to lie in 1..50"),
        (("-c", "protocol.tolerance=60"), "protocol.tolerance = 60 has to lie below 50"),
        (("--epsilon", "nan"), "privacy.epsilon is a finite number, not nan"),
        (("-c", "app.options.model=nowhere:Net"), "app.options.model"),
        (("-c", "app.options.lrr=1"), "did you mean 'lr'?"),
        (("--data-dir", "absent"), "app.options.data is digits, which has no files in"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_refusal_names_the_key_that_is_wrong(tmp_path, arguments, said):
    done = in_this_process("run", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (REFUSED, 1)
    assert said in done.stderr
    assert not list(tmp_path.iterdir())
