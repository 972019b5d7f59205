"""`dordis bounds`: from a configuration without ranges to one that runs, within one budget."""

import json
import tomllib

import numpy as np
import pytest

from tests.cli.in_process import dordis


@pytest.fixture
def home(tmp_path):
    rng = np.random.default_rng(2)
    age, pulse = rng.uniform(20, 90, 500).round(1), rng.uniform(50, 120, 500).round(1)
    ill = np.where(age + pulse > 140, "yes", "no")
    rows = [f"{a};{p if i % 9 else ''};{y}" for i, (a, p, y) in enumerate(zip(age, pulse, ill, strict=True))]
    (tmp_path / "people.csv").write_text("\n".join(["age;pulse;ill", *rows]))
    assert dordis("init", "mine.toml", "--data", "people.csv", cwd=tmp_path).returncode == 0
    text = (tmp_path / "mine.toml").read_text().replace('gaps = "refuse"', 'gaps = { pulse = "indicator" }')
    text = text.replace("clients = 100", "clients = 500").replace("per_round = 100", "per_round = 500")
    text = text.replace("rounds = 20", "rounds = 5").replace("# ill = [", "ill = [")
    (tmp_path / "mine.toml").write_text(text)
    return tmp_path


def test_the_printed_lines_complete_the_configuration(home):
    refused = dordis("run", "mine.toml", cwd=home)
    said = refused.stderr.splitlines()
    assert (refused.returncode, said[0].count("age, pulse")) == (2, 1)
    assert "age = [LOW, HIGH]" in said  # lines to paste are lines of their own
    assert not (home / "runs").exists()

    found = dordis("bounds", "mine.toml", "--ledger", "data.ledger", "--budget", "6", "--share", "0.3", cwd=home)
    assert found.returncode == 0, found.stderr
    pasted = tomllib.loads(found.stdout)
    table = pasted["app"]["options"]["table"]
    assert table["ranges"] == {"age": [0, 128], "pulse": [0, 128]}
    assert table["gaps"] == {"pulse": "indicator"}
    head, tail = (home / "mine.toml").read_text().split("[app.options.table]", 1)
    rest = tail[tail.index("[federation]") : tail.index("[privacy]")]
    (home / "mine.toml").write_text(head + found.stdout + rest + "[simulation]\nfidelity = 'ideal'\n")
    done = dordis("run", "mine.toml", "--ledger", "data.ledger", "--json", cwd=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epsilon"] == pytest.approx(pasted["privacy"]["epsilon"], rel=1e-3)
    known = dordis("bounds", "mine.toml", "--ledger", "data.ledger", "--columns", "age", cwd=home)
    assert (known.returncode, known.stderr.count("\n")) == (2, 1)
    (home / "open.toml").write_text(head + "[app.options.table]" + tail)
    again = dordis("bounds", "open.toml", "--ledger", "data.ledger", "--columns", "age", cwd=home)
    assert (again.returncode, again.stderr.count("\n")) == (3, 1)


def test_a_configuration_without_a_table_is_refused(tmp_path):
    (tmp_path / "plain.toml").write_text("[app.options]\ndata = 'digits'\n")
    refused = dordis("bounds", "plain.toml", "--ledger", "data.ledger", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "dordis init" in refused.stderr
    assert not (tmp_path / "data.ledger").exists()


def test_a_column_without_a_name_is_listed(tmp_path):
    (tmp_path / "people.csv").write_text(",age,\n1,2,3\n")
    nameless = "'' (the column without a name)"
    shown = dordis("data", "people.csv", "--json", cwd=tmp_path)
    assert json.loads(shown.stdout)["columns"] == f"{nameless}, age, {nameless}"


def test_a_table_that_does_not_exist_is_not_asked_to_be_described(tmp_path):
    refused = dordis("run", "-c", "app.options.data=absent.csv", cwd=tmp_path)
    assert (refused.returncode, refused.stderr) == (2, "dordis: there is no file absent.csv\n")
