"""dordis join before it connects: how long training takes, and whether it works at all."""

import json
import re

import pytest

from dordis.network import log_lines
from dordis.owner.directory import ClientDirectory
from dordis.rounds.app import AppClient
from dordis.rounds.user_code import LATE
from tests.cli.in_process import dordis
from tests.network.local_server import enrol

CLIENTS = 3


class Failing(AppClient):
    """An application that cannot train."""

    def __init__(self, place, **options):
        """Take any options."""

    def prepare_data(self, round, model):
        """Fail."""
        raise OSError("the disk is gone")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return enrol(tmp_path_factory.mktemp("federation"), CLIENTS)


def join(folder, *options):
    numbers = ["-c", f"federation.clients={CLIENTS}", "-c", f"federation.per_round={CLIENTS}"]
    files = ["--identity", folder / "c1.key", "--registry", folder / "registry.json"]
    return dordis("join", "https://localhost:1", *files, *numbers, *options, cwd=folder)


def test_a_check_says_how_long_training_takes_and_connects_to_nobody(folder):
    done = join(folder, "--check")
    assert done.returncode == 0, done.stderr
    assert re.search(r"training from the initial model took [0-9.e-]+ s on this machine", done.stdout)
    assert "deployment.train_seconds is not set" in done.stdout
    done = join(folder, "--check", "-c", "deployment.train_seconds=1e6")
    assert "deployment.train_seconds = 1e+06 is enough" in done.stdout
    done = join(folder, "--check", "-c", "deployment.train_seconds=1e-9")
    assert "leaves little room" in done.stdout
    done = join(folder, "--check", "--json")
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["seconds"] > 0
    assert told["train_seconds"] is None


@pytest.mark.parametrize("unit", ["record", "client"])
def test_a_check_describes_the_file_of_the_client_to_its_owner(folder, tmp_path, unit):
    table = """
own_files = true
[app.options.table]
label = "ill"
features = ["age", "smoker"]
ranges = { age = [0, 100] }
categories = { smoker = ["no", "yes"], ill = ["no", "yes"] }
"""
    record = 'unit = "record"\nrecord = "patient"\nrecords = 9\nsampling = 0.5\n' if unit == "record" else ""
    (tmp_path / "clinic.toml").write_text(f"[privacy]\nepsilon = 6\n{record}[app.options]{table}")
    rows = ["patient,age,smoker,ill", "p1,34,NO,no", "p1,34,no,yes", "p2,500,YES,no"]
    (tmp_path / "clinic.csv").write_text("\n".join(rows))
    done = join(folder, "--check", "--config", tmp_path / "clinic.toml", "--data", tmp_path / "clinic.csv")
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert "rows: 3 used" in shown
    assert "column age: range 0 .. 100, 1 values clipped to it" in shown
    assert "column smoker: categories no 1, yes 0, other 2" in shown
    assert ("records: 2" in shown) == (unit == "record")


def test_a_check_shows_what_became_of_trainings(folder):
    assert "status: no training is recorded here" in join(folder, "--check").stdout
    status = ClientDirectory(folder / "c1.state").status
    status.note("the training of client 1 in round 5", LATE)
    assert "status: 1 zero updates (1 too late), the last error at 20" in join(folder, "--check").stdout
    told = json.loads(join(folder, "--check", "--json").stdout.splitlines()[-1])
    assert told["status"]["failures"] == {"too late": 1}
    assert told["status"]["last"] == "the training of client 1 in round 5"


@pytest.mark.parametrize("options", [["--check"], ["-c", "deployment.train_seconds=1"]], ids=["check", "join"])
def test_a_client_that_cannot_train_does_not_join(folder, options):
    done = join(folder, "--app", "tests.cli.commands.test_participants:Failing", *options)
    assert done.returncode != 0
    assert "this client cannot join" in done.stderr
    assert "OSError: the disk is gone" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_says_what_is_missing_against_a_malicious_server(folder):
    done = join(folder)
    assert done.returncode != 0
    assert "deployment.train_seconds must be set" in done.stderr


@pytest.mark.parametrize("command", [("join", "https://localhost:1", "--once", "--follow"), ("serve", "missing.toml")])
@pytest.mark.parametrize(("options", "as_json"), [((), False), (("--log-format", "json"), True)])
def test_the_format_of_log_lines_is_set_on_both_sides(folder, monkeypatch, command, options, as_json):
    """Both commands refuse these arguments as soon as their log is set up."""
    formats = []
    monkeypatch.setattr(log_lines, "set_up_logging", lambda **settings: formats.append(settings["as_json"]))
    files = ("--identity", folder / "c1.key", "--registry", folder / "registry.json")
    assert dordis(*command, *files, *options, cwd=folder).returncode == 2
    assert formats == [as_json]
