"""A ServerApp of Flower that is stopped as soon as it has a sum: the sum is charged, because the gate came first."""

import pytest

from dordis.ledger.ledger import verify_ledger
from dordis.owner.policy import Policy
from tests.adversary.theft import Stolen, raise_stolen, stop_at_the_sum, take_out_gate

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytestmark = pytest.mark.flower

from flwr.serverapp.strategy import FedAvg

from dordis.integrations.flower import DordisGrid, DordisMod
from tests.integrations.flower.apps import MemoryGrid, client_app, model

CLIENTS = 10
SETTINGS = {"federation.rounds": 1, "protocol.mode": "semi-honest"}
POLICY = Policy(cohort=2, epsilon=6.0, delta=1e-5, modes=frozenset({"semi-honest"}))


@pytest.mark.parametrize("gated", [True, False], ids=["with the gate", "without it"])
def test_a_stolen_sum_is_charged_exactly_if_requests_pass_the_gate(monkeypatch, tmp_path, gated):
    stop_at_the_sum(monkeypatch, raise_stolen)
    if not gated:
        take_out_gate(monkeypatch)
    grid = MemoryGrid([client_app([DordisMod(POLICY)])] * CLIENTS)
    private = DordisGrid(grid, SETTINGS | {"output": str(tmp_path)})
    with pytest.raises(Stolen):
        FedAvg().start(private, model(), num_rounds=1)
    (path,) = tmp_path.rglob("ledger.jsonl")
    assert (verify_ledger(path).epsilon > 0) is gated
