"""An application that stores no state is not continued from its first model in silence."""

import pytest

import dordis
from dordis.config.reading import validate_settings
from dordis.errors import InputError
from dordis.rounds.app import AppServer
from dordis.simulation.run import prepare
from tests.simulation.toys import Server

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
