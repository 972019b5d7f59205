"""Data of one's own: a table with a client column, one short configuration, and whom privacy protects."""

import json

import pytest

import dordis as library
from tests.apps.learning import fixtures
from tests.cli.commands import dordis

CONFIG = """\
name = "hospitals"
[app.options]
data = "patients.csv"
test = "public.csv"
client = "hospital"
label = "ill"
[federation]
clients = 60
per_round = 60
rounds = 3
[simulation]
fidelity = "ideal"
"""
UNIT = "clients = 60 hospitals, from the column hospital"


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "patients.csv").write_text(fixtures.hospitals())
    (folder / "public.csv").write_text(fixtures.hospitals(5))
    (folder / "mine.toml").write_text(CONFIG)
    return tmp_path


def test_a_table_trains_by_a_short_configuration_from_any_folder(home):
    assert len(CONFIG.splitlines()) <= 12
    done = dordis("run", "mine/mine.toml", cwd=home)
    assert done.returncode == 0, done.stderr
    assert UNIT in done.stdout
    (path,) = (home / "runs" / "hospitals").iterdir()
    assert f"{UNIT[:1].upper()}{UNIT[1:]}." in (path / "report.html").read_text()
    result = library.load(path)
    assert result.metrics["accuracy"] > 0.8
    assert result.unit == UNIT


def test_a_table_trains_by_the_library(home):
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    rows = pandas.read_csv(home / "mine" / "patients.csv")
    test = pandas.read_csv(home / "mine" / "public.csv")
    result = library.train("softmax", rows, client="hospital", label="ill", test=test, epsilon=6, rounds=2,
                           fidelity="ideal", output=home)  # fmt: skip
    assert result.metrics["accuracy"] > 0.8
    assert result.unit == UNIT
    assert UNIT in repr(result)


def test_hospitals_are_not_merged_behind_anybodys_back(home):
    few = ("-c", "federation.clients=40", "-c", "federation.per_round=40")
    done = dordis("run", "mine/mine.toml", *few, cwd=home)
    assert done.returncode == 2
    assert "60 hospitals, from the column hospital" in done.stderr
    assert "federation.clients = 60" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (home / "runs").exists()
    for partition, said in (
        (
            '{ kind = "natural", some = true }',
            "40 hospitals, from the column hospital; 20 hospitals left out",
        ),
        ('{ kind = "iid" }', "not the 60 hospitals"),
    ):
        told = dordis("run", "mine/mine.toml", *few, "-c", f"app.options.partition={partition}", "--json", cwd=home)
        assert said in json.loads(told.stdout)["clients"]


def test_data_are_looked_at(home, tmp_path):
    told = dordis("data", "mine/patients.csv", "--label", "ill", "--client", "hospital", "--json", cwd=home)
    assert json.loads(told.stdout)["inputs"] == "720 to train on, 0 to test"
    fixtures.write_cifar10(tmp_path / "files" / "cifar-10-batches-bin")
    shown = dordis("data", "cifar10", "--data-dir", "files", cwd=tmp_path)
    assert "3 x 32 x 32" in shown.stdout


@pytest.mark.parametrize("arguments", [("data", "cifar10", "--data-dir", "."), ("data", "femnist"), ("data", "no.csv")])
def test_missing_files_are_one_line_and_exit_code_2(tmp_path, arguments):
    done = dordis(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("dordis: ")
