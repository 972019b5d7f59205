"""A ServerApp of Flower is warned in its log of a delta that is too large, before the first round."""

import logging

import pytest

from dordis.owner.policy import Policy

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytestmark = pytest.mark.flower

from flwr.serverapp.strategy import FedAvg

from dordis.integrations.flower import DordisGrid, DordisMod
from tests.integrations.flower.apps import MemoryGrid, client_app, model

CLIENTS = 10
SETTINGS = {"federation.rounds": 1, "protocol.mode": "semi-honest"}


@pytest.mark.parametrize(
    ("delta", "warnings"),
    [
        (1e-5, []),
        (1e-2, ["delta = 0.01 is above 0.001"]),
        (0.1, ["delta = 0.1 is not below 0.1, one over the clients", "delta = 0.1 is above 0.001"]),
    ],
)
def test_a_large_delta_is_warned_about(tmp_path, caplog, delta, warnings):
    policy = Policy(cohort=2, epsilon=6.0, delta=delta, modes=frozenset({"semi-honest"}))
    grid = MemoryGrid([client_app([DordisMod(policy)])] * CLIENTS)
    private = DordisGrid(grid, SETTINGS | {"output": str(tmp_path), "privacy.delta": delta})
    with caplog.at_level(logging.WARNING, "flwr.dordis"):
        FedAvg().start(private, model(), num_rounds=1)
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("delta = ")]
    assert len(said) == len(warnings)
    assert all(line.startswith(warning) for line, warning in zip(said, warnings, strict=True))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"privcy.epsilon": 3.0}, "'privcy.epsilon' is ignored: is 'privacy.epsilon' meant?"),
        ({"privacys": {"epsilon": 3.0}}, "'privacys' is ignored: is 'privacy' meant?"),
        ({"epsilon": 3.0}, "'epsilon' is ignored: is 'privacy.epsilon' meant?"),
        ({"epsilon": 3.0, "privacy": {"epsilon": 2.0}, "learning-rate": 0.1, "name-of-my-app": "x"}, ""),
        ({"epsilon": 3.0, "privacy.epsilon": 2.0, "model.width": 3, "batch-size": 4}, ""),
    ],
)
def test_settings_that_look_misspelt_are_warned_about(caplog, given, meant):
    with caplog.at_level(logging.WARNING, "flwr.dordis"):
        DordisGrid(MemoryGrid([client_app([])] * 3), SETTINGS | given)
    said = [record.getMessage() for record in caplog.records]
    assert said == ([f"in the settings of the private run {meant}"] if meant else [])
