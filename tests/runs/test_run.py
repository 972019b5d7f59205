"""An application without state is not continued in silence, and a run whose training diverges is closed as failed."""

import numpy as np
import pytest

import dordis
from dordis.config.reading import validate_settings
from dordis.errors import Diverged, InputError, TooFewClients
from dordis.records.run_records import load_run
from dordis.rounds.app import AppServer
from dordis.simulation.run import prepare
from tests.cli.in_process import dordis as command
from tests.simulation.toys import Client, Server

SETTINGS = {
    "app": {"server": "tests.runs.test_run:Forgetful", "client": "tests.simulation.toys:Client"},
    "federation": {"clients": 12, "per_round": 6, "rounds": 2},
    "simulation": {"fidelity": "ideal", "dropout": {"kind": "none"}},
}


class Forgetful(Server):
    """A server that defines neither `state` nor `restore`."""

    state, restore = AppServer.state, AppServer.restore


def test_a_server_without_state_is_neither_resumed_nor_succeeded_and_told_what_to_write(tmp_path):
    done = dordis.run(SETTINGS | {"output": str(tmp_path)}, accept_hopeless=True)
    job = prepare(validate_settings(SETTINGS | {"output": str(tmp_path)}))
    longer = SETTINGS | {"federation": {"clients": 12, "per_round": 6, "rounds": 3}}
    after = prepare(validate_settings(longer))
    for go_on in (lambda: job.resume(done.path), lambda: after.succeed(done.path, tmp_path, "")):
        with pytest.raises(InputError, match="Forgetful has no state to continue from after 2 rounds") as error:
            go_on()
        assert "def state(self)" in str(error.value)
        assert "def restore(self, state)" in str(error.value)


class Diverging(Server):
    """A server whose model is not a number after the first round."""

    def use_output(self, round, aggregate):
        super().use_output(round, aggregate)
        self.mean = np.full(self.dim, np.nan)

    def evaluate(self):
        return {}


class Unexportable(Diverging):
    def export(self, directory):
        raise OSError("no space left")


class Endless(Client):
    """A client whose update does not fit into the integers of a sum without clipping."""

    def prepare_data(self, round, model):
        return np.full(40, 1e300)


def diverging(tmp_path, server="Diverging", client="tests.simulation.toys:Client", *keys):
    apps = {"server": f"tests.runs.test_run:{server}", "client": client}
    privacy = {"privacy": {"noise": {"kind": "none"}}, "simulation": {"fidelity": "full"}} if keys else {}
    return prepare(validate_settings(SETTINGS | {"app": apps, "output": str(tmp_path)} | privacy)).start(tmp_path, "")


def test_a_run_whose_model_diverges_is_closed_as_failed(tmp_path):
    run = diverging(tmp_path)
    with pytest.raises(Diverged, match="lower learning rate"):
        run.complete()
    ended = load_run(run.records.path).result
    assert (ended.stopped, ended.rounds) == ("failed", 1)


def test_a_run_with_an_update_that_cannot_be_encoded_is_closed_as_failed(tmp_path):
    run = diverging(tmp_path, "Forgetful", "tests.runs.test_run:Endless", "no noise")
    with pytest.raises(Diverged, match="lower learning rate"):
        run.complete()
    assert load_run(run.records.path).result.stopped == "failed"


@pytest.mark.parametrize("cause", [None, TooFewClients("Unmask", 2, 3, frozenset()), KeyboardInterrupt()])
def test_an_error_of_export_does_not_hide_why_a_run_ended(tmp_path, cause, monkeypatch):
    run = diverging(tmp_path, "Unexportable")
    if cause is not None:
        monkeypatch.setattr(Unexportable, "use_output", lambda *_: (_ for _ in ()).throw(cause))
    with pytest.raises(Diverged if cause is None else type(cause)) as error:
        run.complete()
    assert error.value.__notes__ == ["then the end of the run could not be recorded: no space left"]
    ended = load_run(run.records.path).result
    assert ended.stopped == ("interrupted" if isinstance(cause, KeyboardInterrupt) else "failed")


def test_the_command_does_not_tell_a_diverged_run_to_be_resumed(tmp_path):
    apps = ("-c", "app.server=tests.runs.test_run:Diverging", "-c", "app.client=tests.simulation.toys:Client")
    sizes = ("-c", "federation.clients=12", "-c", "federation.per_round=6", "-c", "federation.rounds=2")
    done = command("run", *apps, *sizes, "-c", "simulation.fidelity=ideal", "--yes", cwd=tmp_path)
    assert done.returncode == 2
    assert "training diverged" in done.stderr
    assert "the run is closed as failed" in done.stderr
    assert "resume" not in done.stderr
    (path,) = tmp_path.glob("runs/*/*")
    assert load_run(path).result.stopped == "failed"
