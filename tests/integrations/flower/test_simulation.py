"""Flower's own simulation, with its processes and its encoding: as in memory, so there."""

import logging
import os

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("ray", reason="Flower simulates with the extra 'ray'")
pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # nothing is reported to anyone

from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from flwr.simulation import run_simulation

from dordis.errors import InputError
from dordis.federation import records
from dordis.federation.policy import Policy
from dordis.integrations.flower import DordisGrid, DordisMod
from tests.integrations.flower.apps import NO_NOISE, MemoryGrid, client_app, model, vanish, vector
from tests.integrations.flower.test_rounds import CLIENTS, CLOSE, STAGES, aggregated, engine, losing

RAY = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "logging_level": "ERROR", "log_to_driver": False}
BACKEND = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": RAY}
EITHER = Policy(
    mechanisms=frozenset({"none", "skellam"}), schemes=NO_NOISE.schemes | Policy().schemes, without_guarantee=True
)


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def simulate(main, apps=None, nodes=CLIENTS):
    """Run a ServerApp over simulated nodes; what it raises is raised."""
    server = ServerApp()
    server.main()(main)
    run_simulation(
        server, apps or client_app([vanish, DordisMod(EITHER)]), num_supernodes=nodes, backend_config=BACKEND
    )


def test_strategies_get_what_our_engine_gives_though_nodes_vanish_at_any_stage(tmp_path):
    seen = {}

    def main(grid, context):
        for stage in STAGES:
            for kind in (FedAvg, FedAdam):
                settings = {"output": str(tmp_path / stage / kind.__name__), "federation.rounds": 1}
                private = DordisGrid(grid, settings | {"privacy.noise.kind": "none", "federation.clients": CLIENTS})
                result = kind().start(private, model(), num_rounds=1, train_config=losing(2, stage))
                seen[stage, kind] = vector(result.arrays), *records.load(private.path).rounds

    simulate(main)
    assert len(seen) == 2 * len(STAGES)
    for (stage, kind), (arrays, record) in seen.items():
        expected = engine(2, stage)
        mean = expected.result.aggregate.mean
        assert np.abs(arrays - aggregated(kind(), MemoryGrid([None] * CLIENTS), mean)).max() < CLOSE
        assert record.survivors == expected.record.survivors
        assert _counted(record) == _counted(expected.record)


def _counted(record):
    return {stage: len(gone) for stage, gone in record.dropped.items()}


def test_noise_of_nodes_that_vanish_when_it_is_removed_is_removed_all_the_same(tmp_path):
    seen = []

    def main(grid, context):
        for count, stage in ((1, "Unmask"), (2, "RemoveNoise")):
            settings = {"output": str(tmp_path / stage), "federation.rounds": 1, "federation.clients": CLIENTS}
            settings["privacy.noise.scheme"] = "exact"  # everyone owes seeds
            private, lost = DordisGrid(grid, settings), losing(count, stage)
            lost["at"] = "Unmask"  # the next node, whose seed is then asked of the others
            FedAvg().start(private, model(), num_rounds=1, train_config=lost)
            seen.extend(records.load(private.path).rounds)

    simulate(main)
    assert [_counted(record) for record in seen] == [{"Unmask": 2}, {"Unmask": 1, "RemoveNoise": 2}]
    for record in seen:
        assert record.charged == pytest.approx(record.wanted)


def test_a_node_without_our_mod_is_named(tmp_path):
    def main(grid, context):
        private = DordisGrid(grid, {"output": str(tmp_path), "federation.rounds": 1})
        with pytest.raises(InputError, match="put dordis_mod among the mods"):
            FedAvg().start(private, model(), num_rounds=1)

    simulate(main, client_app([]), nodes=2)
