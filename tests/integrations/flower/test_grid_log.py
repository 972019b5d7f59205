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
