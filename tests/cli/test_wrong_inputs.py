"""Two hundred wrong inputs, by command, file and function: one line each, the right exit code, and nothing written."""

import copy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from _pytest.mark import ParameterSet

import dordis
from dordis.cli.output import FOUND, OVER_BUDGET, REFUSED
from dordis.errors import InputError
from tests.cli.in_process import dordis as in_this_process
from tests.paused_processes import HANG

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

INSTALLED = (("trian",), ("run", "--epsilon", "much"))
"""Inputs that the installed command gets; the others are tried in this process, which is quicker."""


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


def installed(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = shutil.which("dordis", path=Path(sys.executable).parent)
    assert command, "dordis is not installed beside this python"
    return subprocess.run([command, *arguments], cwd=cwd, capture_output=True, text=True, timeout=HANG)


def test_there_are_more_than_fifty() -> None:
    assert len(set(WRONG)) == len(WRONG) > 50


def all_but_a_few_slow() -> list[ParameterSet]:
    """Return all of them; most wait for the slow tests."""
    marks = {arguments: () if arguments in INSTALLED else (pytest.mark.slow,) for arguments in WRONG}
    return [pytest.param(arguments, marks=mark, id=" ".join(arguments)) for arguments, mark in marks.items()]


@pytest.mark.parametrize("arguments", all_but_a_few_slow())
def test_a_wrong_input_is_one_line_and_nothing_is_lost(folder, arguments):
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    run = installed if arguments in INSTALLED else in_this_process
    done = run(*filter(None, arguments), cwd=folder)
    assert (done.returncode, done.stdout) == (REFUSED, "") or "1e308" in " ".join(arguments)
    assert done.returncode == REFUSED
    lines = [line for line in done.stderr.splitlines() if "compiling kernels" not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("dordis: ")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.slow
def test_a_query_beyond_its_budget_has_its_own_code(folder):
    first = ("mean", "numbers.csv", "--epsilon", "1", "--bounds", "0,10", "--ledger", "spent.jsonl")
    assert installed(*first, "--budget", "1.2", cwd=folder).returncode == 0
    kept = (folder / "spent.jsonl").read_bytes()
    again = installed(*first, cwd=folder)
    assert (again.returncode, again.stderr.count("\n"), again.stdout) == (OVER_BUDGET, 1, "")
    assert (folder / "spent.jsonl").read_bytes() == kept
    assert OVER_BUDGET not in (REFUSED, FOUND)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--clients", "2"), "federation.per_round = 50 is more than federation.clients = 2"),
        (("-c", "protocol.threshold=200"), "protocol.threshold = 200 has to lie in 1..50"),
        (("-c", "protocol.tolerance=60"), "protocol.tolerance = 60 has to lie below 50"),
        (("--epsilon", "nan"), "privacy.epsilon must be a finite number, not nan"),
        (("-c", "app.options.model=nowhere:Net"), "app.options.model"),
        (("-c", "app.options.lrr=1"), "did you mean 'lr'?"),
        (("--data-dir", "absent"), "app.options.data is digits, which is not read from"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_refusal_names_the_key_that_is_wrong(tmp_path, arguments, said):
    done = in_this_process("run", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (REFUSED, 1)
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


ROWS = "".join(f"{20 + i},{60 + i},{'yes' if i % 2 else 'no'},p{i}\n" for i in range(30))
HEAD = "age,pulse,ill,who\n"
FILES = {
    "t.csv": HEAD + ROWS,
    "dup.csv": "age,age,ill\n1,2,no\n2,3,yes\n",
    "short.csv": HEAD + "1,2,no\n",
    "bin.csv": "\0\1\2",
    "quote.csv": 'age,ill\n1,"no\n',
    "head.csv": HEAD,
    "nohead.csv": "1,2,3\n4,5,6\n",
    "gap.csv": HEAD + ",60,no,a\n" + ROWS,
    "nowho.csv": HEAD + "30,60,no,\n" + ROWS,
    "text.csv": HEAD + "old,60,no,a\n" + ROWS,
    "third.csv": HEAD + "30,60,maybe,a\n" + ROWS,
    "inf.csv": HEAD + "1e999,60,no,a\n" + ROWS,
    "x.parquet": "not parquet",
    "array.toml": "[[app]]\n",
    "note.txt": "no run\n",
}
TABLE = {
    "label": "ill",
    "exclude": ["who"],
    "ranges": {"age": [0, 100], "pulse": [0, 200]},
    "categories": {"ill": ["no", "yes"]},
}
JOB = {
    "federation": {"clients": 30, "per_round": 30, "rounds": 2},
    "simulation": {"fidelity": "ideal"},
    "privacy": {"epsilon": 6.0},
}
CHANGES = {
    **{
        name: ("data", f"{name}.csv")
        for name in ["dup", "short", "bin", "quote", "head", "nohead", "gap", "text", "third", "inf", "absent"]
    },
    "parquet": ("data", "x.parquet"),
    "no label": ("table.label", None),
    "other label": ("table.label", "illness"),
    "two kinds": ("table.categories", {"age": ["1"], "ill": ["no", "yes"]}),
    "range upside down": ("table.ranges.age", [100, 0]),
    "range of one": ("table.ranges.age", [0]),
    "range of texts": ("table.ranges.age", ["a", "b"]),
    "range of a point": ("table.ranges.age", [5, 5]),
    "range without end": ("table.ranges.age", [0, "inf"]),
    "range of no column": ("table.ranges.height", [0, 3]),
    "no categories": ("table.categories.ill", []),
    "doubled category": ("table.categories.ill", ["no", "no"]),
    "one category": ("table.categories.ill", ["no"]),
    "categories of no column": ("table.categories.town", ["a"]),
    "gaps of no column": ("table.gaps", {"agee": "skip"}),
    "unknown key": ("table.rangse", 3),
    "no such client": ("table.client", "person"),
    "client is label": ("table.client", "ill"),
    "label excluded": ("table.exclude", ["ill"]),
    "no such feature": ("table.features", ["age", "weight"]),
    "feature twice": ("table.features", ["age", "age"]),
    "two labels, one of classes": ("table.label", ["ill", "age"]),
    "weight of no class": ("class_weights", {"maybe": 2.0}),
    "weight zero": ("class_weights", {"yes": 0.0}),
    "no such model": ("model", "forest"),
    "model of numbers": ("model", "linear"),
    "rate beyond all": ("lr", 1e30),
    "negative rate": ("lr", -1.0),
    "no epochs": ("epochs", 0),
    "negative batch": ("batch", -3),
    "no test file": ("test", "absent.csv"),
    "test of other columns": ("test", "nohead.csv"),
    "label outside": ("label", "ill"),
    "own files in a simulation": ("own_files", True),
    "average of one": ("average", 1.0),
    "option misspelt": ("epoch", 3),
}
OTHERS = [
    *(("run", "ok.toml", "-c", setting) for setting in (
        "federation.clients=31", "federation.clients=2", "federation.rounds=1.5", "federation.clients=many",
        "federation.per_round=0", "federation.tries=0", "privacy.epsilon=inf", "privacy.delta=0", "privacy.delta=1",
        "privacy.clip=0", "privacy.clip=nan", "privacy.unit=person", "protocol.colluders=-1", "protocol.colluders=30",
        "simulation.seed=-1", "simulation.engine=cloud", "deployment.port=99999", "deployment.test=3", "name=",
        "=3", "federations.clients=3", "app.options.table.label=nope",
    )),
    ("run", "array.toml"),
    ("run", "."),
    ("run", "ok.toml", "extra.toml"),
    ("run", "ok.toml", "--data-dir", "nowhere"),
    ("run", "ok.toml", "--ledger", "absent/l"),
    ("run", "ok.toml", "--ledger", "t.csv"),
    ("run", "ok.toml", "--budget", "3"),
    ("run", "ok.toml", "--ledger", "new.ledger", "--budget", "-1"),
    ("run", "ok.toml", "--ledger", "new.ledger", "--budget", "nan"),
    ("run", "--resume", "note.txt"),
    ("run", "--succeed", "note.txt", "--epsilon", "3"),
    ("run", "--resume", ".", "--ledger", "new.ledger"),
    ("init", "new.toml", "--data", "absent.csv"),
    ("init", "new.toml", "--data", "nohead.csv"),
    ("init", "new.toml", "--data", "bin.csv"),
    ("init", "new.toml", "--data", "x.parquet"),
    ("init", "new.toml", "--data", "."),
    ("init", "new.toml", "--preset", "absent"),
    ("init", "absent/new.toml"),
    ("bounds", "ok.toml"),
    ("bounds", "ok.toml", "--ledger", "new.ledger"),
    ("bounds", "absent.toml", "--ledger", "new.ledger"),
    ("bounds", "ok.toml", "--ledger", "new.ledger", "--columns", "who"),
    ("bounds", "ok.toml", "--ledger", "new.ledger", "--columns", "height"),
    ("bounds", "ok.toml", "--ledger", "new.ledger", "--columns", "age"),
    ("bounds", "open.toml", "--ledger", "new.ledger", "--share", "2"),
    ("bounds", "open.toml", "--ledger", "new.ledger", "--share", "0.001"),
    ("bounds", "open.toml", "--ledger", "absent/l", "--share", "0.9"),
    ("rehearse", "absent.toml"),
    ("rehearse", "wrong.toml"),
    ("rehearse", "ok.toml", "--rows", "0"),
    ("data", "absent.csv"),
    ("data", "nothing"),
    ("mean", "t.csv", "--columns", "age"),
    ("mean", "t.csv", "--epsilon", "1", "--columns", "ill"),
    ("mean", "t.csv", "--epsilon", "0", "--columns", "age"),
    ("mean", "t.csv", "--epsilon", "1", "--columns", "age", "--bounds", "0"),
    ("mean", "t.csv", "--epsilon", "1", "--columns", "age", "--bounds", "0,x"),
    ("mean", "t.csv", "--epsilon", "1", "--columns", "age", "--delta", "1"),
    ("mean", "t.csv", "--epsilon", "1", "--columns", "age", "--bounds", "0,9", "--dropped", "40"),
    ("mean", "t.csv", "--epsilon", "1", "--columns", "age", "--bounds", "0,9", "--budget", "3"),
    ("mean", "dup.csv", "--epsilon", "1", "--columns", "age"),
    ("histogram", "t.csv", "--epsilon", "1", "--column", "age", "--bins", "1", "--bounds", "0,9"),
    ("histogram", "t.csv", "--epsilon", "1", "--column", "age", "--edges", "3,2"),
    ("histogram", "t.csv", "--epsilon", "1", "--column", "age", "--edges", "a"),
    ("histogram", "t.csv", "--epsilon", "1", "--column", "age", "--bins", "3", "--edges", "1,2"),
    ("report", "t.csv", "note.txt"),
    ("report", "."),
    ("report", "--output", "x.html", "."),
    ("ledger", "sum"),
    ("ledger", "sum", "absent"),
    ("ledger", "sum", "t.csv"),
    ("ledger", "verify", "t.csv", "--run", "zz"),
    ("keys", "request", "x.txt"),
    ("keys", "ca", "t.csv"),
    ("keys", "list", "absent"),
    ("keys", "approve", "absent", "a.request"),
    ("keys", "revoke", "absent", "me"),
    ("keys", "rotate", "absent.key", "new.key"),
    ("keys", "issue", "absent", "me"),
    ("join", "https://localhost:1", "--identity", "absent.key"),
    ("serve", "ok.toml", "--identity", "a.key", "--registry", "b.json"),
    ("serve", "--resume", "absent", "--identity", "a.key", "--registry", "b.json"),
    ("plan", "--clients", "10"),
    ("plan", "--clients", "10", "--per-round", "10", "--rounds", "0", "--dim", "10", "--epsilon", "1"),
    ("plan", "--clients", "10", "--per-round", "10", "--rounds", "1", "--dim", "10", "--epsilon", "0"),
    ("plan", "--clients", "10", "--per-round", "10", "--rounds", "1", "--dim", "10", "--epsilon", "1", "--delta", "2"),
    ("plan", "graph", "--clients", "1"),
    ("audit", "--rounds", "0"),
    ("demo", "--clients", "1"),
    ("doctor", "extra"),
]  # fmt: skip


def changed_options(key: str, value: object) -> dict[str, object]:
    """Return the options of the job with one of them changed, or removed if the value is None."""
    options: dict = {"data": "t.csv", "table": {name: copy.copy(part) for name, part in TABLE.items()}}
    *way, last = key.split(".")
    section = options
    for name in way:
        section = section.setdefault(name, {})
    section.pop(last, None)
    return options if value is None else (section.update({last: value}), options)[1]


@pytest.fixture
def tables(tmp_path):
    """A folder with tables and configurations, wrong ones and a right one, `ok.toml`."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name, key, value in (("ok", "data", "t.csv"), ("open", "table.ranges", {}), ("wrong", "table.label", None)):
        (tmp_path / f"{name}.toml").write_text(tomli_w.dumps(JOB | {"app": {"options": changed_options(key, value)}}))
    return tmp_path


def check_refused(folder, *arguments):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = in_this_process(*arguments, cwd=folder)
    lines = [line for line in done.stderr.splitlines() if "compiling kernels" not in line]
    assert (done.returncode, done.stdout) == (REFUSED, ""), done.stderr
    assert lines[0].startswith("dordis: ")
    assert len(lines) == 1 or lines[1].startswith("[app.options.table"), lines  # lines to paste may follow
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_there_are_more_than_a_hundred_and_twenty() -> None:
    assert len(WRONG) + len(CHANGES) + len(set(OTHERS)) + len(CALLS) > 200
    assert len(set(OTHERS)) == len(OTHERS)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_table_or_option_is_one_line_and_nothing_is_written(tables, change):
    options = changed_options(*CHANGES[change])
    (tables / "job.toml").write_text(tomli_w.dumps(JOB | {"app": {"options": options}}))
    check_refused(tables, "run", "job.toml", "--ledger", "new.ledger")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", OTHERS, ids=" ".join)
def test_a_wrong_argument_is_one_line_and_nothing_is_written(tables, arguments):
    check_refused(tables, *arguments)


COLUMNS = {"age": list(range(20, 50)), "ill": ["no", "yes"] * 15}
DESCRIBED = {"label": "ill", "ranges": {"age": (0, 100)}, "categories": {"ill": ("no", "yes")}}
PAIRS = [(np.ones((4, 2)), np.array([0, 1, 0, 1]))] * 20
CALLS = {
    "two clients": lambda: dordis.train("softmax", PAIRS[:2], epsilon=6),
    "no clients": lambda: dordis.train("softmax", [], epsilon=6),
    "one class": lambda: dordis.train("softmax", [(np.ones((4, 2)), np.zeros(4, int))] * 20, epsilon=6),
    "labels 0 and 5": lambda: dordis.train("softmax", [(np.ones((2, 2)), np.array([0, 5]))] * 20, epsilon=6),
    "labels below 0": lambda: dordis.train("softmax", [(np.ones((2, 2)), np.array([-1, 0]))] * 20, epsilon=6),
    "labels of another length": lambda: dordis.train("softmax", [(np.ones((2, 2)), np.array([0]))] * 20, epsilon=6),
    "inputs of two shapes": lambda: dordis.train("softmax", [*PAIRS, (np.ones((4, 3)), np.arange(4) % 2)], epsilon=6),
    "inputs that are NaN": lambda: dordis.train(
        "softmax", [(np.full((2, 2), np.nan), np.array([0, 1]))] * 9, epsilon=6
    ),
    "rate 1e30": lambda: dordis.train("softmax", PAIRS, epsilon=6, lr=1e30),
    "no such setting": lambda: dordis.train("softmax", PAIRS, epsilon=6, learning_rate=1),
    "epsilon 0": lambda: dordis.train("softmax", PAIRS, epsilon=0),
    "delta 2": lambda: dordis.train("softmax", PAIRS, epsilon=6, delta=2),
    "no such model": lambda: dordis.train("forest", PAIRS, epsilon=6),
    "no rounds": lambda: dordis.train("softmax", PAIRS, epsilon=6, rounds=0),
    "no such mode": lambda: dordis.train("softmax", PAIRS, epsilon=6, mode="friendly"),
    "no such unit": lambda: dordis.train("softmax", PAIRS, epsilon=6, unit="person"),
    "dropout of all": lambda: dordis.train("softmax", PAIRS, epsilon=6, dropout=1.5),
    "a table without description": lambda: dordis.train("softmax", COLUMNS, epsilon=6),
    "a table of text": lambda: dordis.train("softmax", "rows", table=dordis.Table(**DESCRIBED), epsilon=6),
    "columns of two lengths": lambda: dordis.train(
        "softmax", COLUMNS | {"age": [1]}, table=dordis.Table(**DESCRIBED), epsilon=6
    ),
    "a label that is absent": lambda: dordis.Table(label=""),
    "a range upside down": lambda: dordis.Table(label="a", ranges={"a": (1, 0)}),
    "a column of two kinds": lambda: dordis.Table(label="a", ranges={"a": (0, 1)}, categories={"a": ("x",)}),
    "a mean of texts": lambda: dordis.mean(["a", "b", "c"], epsilon=1, bounds=(0, 1)),
    "a mean of two": lambda: dordis.mean([1.0, 2.0], epsilon=1, bounds=(0, 9)),
    "a mean with NaN": lambda: dordis.mean([1.0, 2.0, float("nan")], epsilon=1, bounds=(0, 9)),
    "three bounds for two columns": lambda: dordis.mean(np.ones((5, 2)), epsilon=1, bounds=[(0, 1)] * 3),
    "bounds of no column": lambda: dordis.mean(np.ones((5, 2)), epsilon=1, bounds={"height": (0, 1)}),
    "a mean of no client": lambda: dordis.mean(np.ones(5), epsilon=1, bounds=(0, 2), client=["a"] * 4),
    "a mean of one client": lambda: dordis.mean(np.ones(5), epsilon=1, bounds=(0, 2), client=["a"] * 5),
    "doubled categories": lambda: dordis.histogram(["a", "b", "a"], epsilon=1, categories=["a", "a"]),
    "bins and categories": lambda: dordis.histogram(["a", "b", "a"], 3, epsilon=1, categories=["a"]),
    "an absent run": lambda: dordis.load("absent"),
    "a model of text": lambda: dordis.load(__file__),
    "a configuration of numbers": lambda: dordis.run(3),
    "a setting that is absent": lambda: dordis.run({"federation": {"client": 3}}),
    "ranges of text": lambda: dordis.find_ranges(COLUMNS, dordis.Table(label="age"), epsilon=6, columns=["ill"]),
    "ranges with no share": lambda: dordis.find_ranges(COLUMNS, dordis.Table(label="ill"), epsilon=6, share=0),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_raises_one_line_and_nothing_is_written(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        CALLS[call]()
    assert len(str(error.value)) > 20
    assert not list(tmp_path.iterdir())
