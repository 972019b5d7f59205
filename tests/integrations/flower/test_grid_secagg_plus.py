"""SecAgg+ over Flower's messages: who masks with whom follows from public randomness that every node reads itself."""

import numpy as np
import pytest

from dordis.errors import InputError, RoundFailed
from dordis.records import run_records

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytestmark = pytest.mark.flower

from flwr.serverapp.strategy import FedAvg

from dordis.integrations.flower import DordisGrid, DordisMod
from dordis.integrations.flower.pins import BEACON
from tests.integrations.flower.apps import NO_NOISE, MemoryGrid, client_app, model, update, vanish, vector
from tests.integrations.flower.test_grid import CLOSE, losing

CLIENTS, LOST = 14, 1
VALUES = [f"2026-01-31T12:0{line}:00Z {line:064x}\n" for line in range(1, 9)]


def grid_of(beacons):
    config = {place: {BEACON: str(path)} for place, path in enumerate(beacons) if path}
    return MemoryGrid([client_app([vanish, DordisMod(NO_NOISE)])] * CLIENTS, config)


@pytest.fixture
def published(tmp_path):
    path = tmp_path / "beacon.txt"
    path.write_text("".join(VALUES))
    return path


def settings(folder, **more):
    sparse = {"protocol.use": "secagg+", "protocol.tolerance": LOST, "federation.rounds": 1, "federation.tries": 1}
    return {"output": str(folder / "runs"), "privacy.noise.kind": "none", **sparse} | more


def test_a_sparse_round_comes_to_the_mean_though_a_node_vanishes(tmp_path, published):
    grid = grid_of([published] * CLIENTS)
    private = DordisGrid(grid, settings(tmp_path, **{"deployment.beacon": str(published)}))
    result = FedAvg().start(private, model(), num_rounds=1, train_config=losing(LOST, "Agree"))
    expected = vector(model()) + np.mean([update(place) for place in range(CLIENTS)], axis=0)
    assert np.abs(vector(result.arrays) - expected).max() < CLOSE
    run = run_records.load_run(private.path)
    assert run.manifest.protocol == "secagg+"
    assert run.manifest.beacon == "file: beacon.txt"
    assert run.rounds[0].dropped == {"Agree": (1,)}


def test_without_public_randomness_there_is_no_sparse_graph(tmp_path):
    with pytest.raises(InputError, match=r"set deployment\.beacon to its file, or use 'secagg'"):
        FedAvg().start(DordisGrid(grid_of([None] * CLIENTS), settings(tmp_path)), model(), num_rounds=1)


@pytest.mark.parametrize("has", ["none", "another"])
def test_nodes_leave_a_round_whose_graph_they_cannot_verify(tmp_path, published, caplog, has):
    own = tmp_path / "own.txt"
    own.write_text("".join(VALUES[1:]))
    grid = grid_of([own if has == "another" else None] * CLIENTS)
    private = DordisGrid(grid, settings(tmp_path, **{"deployment.beacon": str(published)}))
    with pytest.raises(RoundFailed):
        FedAvg().start(private, model(), num_rounds=1)
    assert ("set dordis-beacon on this node" if has == "none" else "is not the published one") in caplog.text
