"""Data of one's own: a table with a client column, one short configuration, and whom privacy protects."""

import json

import pytest

import dordis as library
from tests.apps.learning import fixtures
from tests.cli.in_process import dordis

CONFIG = """\
name = "hospitals"
[app.options]
data = "patients.csv"
test = "public.csv"
[app.options.table]
label = "ill"
client = "hospital"
ranges = [-4, 4]
categories = { ill = [0, 1] }
[federation]
clients = 60
per_round = 60
rounds = 10
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
    assert len(CONFIG.splitlines()) <= 15
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
    table = library.Table(label="ill", client="hospital", ranges=(-4, 4), categories={"ill": (0, 1)})
    result = library.train("softmax", rows, table=table, test=test, epsilon=6, fidelity="ideal", output=home)
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
    told = dordis("data", "mine/patients.csv", "--json", cwd=home)
    assert json.loads(told.stdout)["columns"] == "hospital, pressure, age, ill"
    fixtures.write_cifar10(tmp_path / "files" / "cifar-10-batches-bin")
    shown = dordis("data", "cifar10", "--data-dir", "files", cwd=tmp_path)
    assert "3 x 32 x 32" in shown.stdout


@pytest.mark.parametrize("arguments", [("data", "cifar10", "--data-dir", "."), ("data", "femnist"), ("data", "no.csv")])
def test_missing_files_are_one_line_and_exit_code_2(tmp_path, arguments):
    done = dordis(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("dordis: ")


def test_a_raw_table_is_one_message_for_all_columns_and_spends_nothing(home):
    config = CONFIG.replace("ranges = [-4, 4]\ncategories = { ill = [0, 1] }\n", "")
    (home / "mine" / "raw.toml").write_text(config)
    done = dordis("run", "mine/raw.toml", cwd=home)
    assert done.returncode == 2
    assert "3 columns of" in done.stderr
    assert "pressure, age, ill" in done.stderr
    assert "pressure = [LOW, HIGH]" in done.stderr
    assert not (home / "runs").exists()


def test_a_template_is_written_from_the_header_alone_and_runs_once_filled_in(home):
    folder = home / "mine"
    rows = fixtures.hospitals()
    (folder / "header.csv").write_text(rows.split("\n", 1)[0] + "\n")
    for name in ("header", "patients"):
        done = dordis("init", f"{name}.toml", "--data", f"{name}.csv", cwd=folder)
        assert done.returncode == 0, done.stderr
    text = (folder / "patients.toml").read_text()
    assert text.replace("patients", "header") == (folder / "header.toml").read_text()
    filled = text.replace("= 100", "= 60").replace('# ill = ["no", "yes"]', "ill = [0, 1]")
    for name in ("pressure", "age"):
        filled = filled.replace(f"# {name} = [LOW, HIGH]", f"{name} = [-4, 4]")
    (folder / "patients.toml").write_text(filled)
    shown = dordis("run", "patients.toml", "--dry-run", "--json", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["prospects"].endswith("the noise costs little accuracy")
    told = dordis("rehearse", "patients.toml", "--json", cwd=folder)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["spent"].startswith("nothing")
    assert not (folder / "runs").exists()


def test_a_hopeless_plan_is_refused_before_anything_is_spent_unless_it_is_accepted(home):
    hopeless = ("-c", "privacy.epsilon=0.01")
    done = dordis("run", "mine/mine.toml", *hopeless, cwd=home)
    assert done.returncode == 2
    assert "the plan is hopeless" in done.stderr
    assert not (home / "runs").exists()
    done = dordis("run", "mine/mine.toml", *hopeless, "-c", "federation.rounds=1", "--yes", cwd=home)
    assert done.returncode == 0, done.stderr
    assert "the plan is hopeless" in done.stderr
    with pytest.raises(library.HopelessPlan, match="takes about"):
        library.run({"app": {"folder": str(home / "mine"), "options": OPTIONS}, **SMALL, "output": str(home / "no")})
    assert not (home / "no").exists()


OPTIONS = {
    "data": "patients.csv",
    "table": {"label": "ill", "client": "hospital", "ranges": [-4, 4], "categories": {"ill": [0, 1]}},
}
SMALL = {
    "federation": {"clients": 60, "per_round": 60, "rounds": 1},
    "privacy": {"epsilon": 0.01},
    "simulation": {"fidelity": "ideal"},
}
