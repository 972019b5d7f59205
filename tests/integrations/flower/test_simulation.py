"""Flower's own simulation, with its processes and its encoding: as in memory, so there."""

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("ray", reason="Flower simulates with the extra 'ray'")
pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from flwr.simulation import run_simulation

from dordis.errors import InputError
from dordis.integrations.flower import DordisGrid, DordisMod
from dordis.owner.policy import Policy
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.noise_strategies import XNoise
from dordis.privacy.setting import Setting
from dordis.records import run_records
from dordis.runs.plan import RoundPlan
from tests.integrations.flower.apps import DIM, NO_NOISE, MemoryGrid, client_app, model, vanish, vector
from tests.integrations.flower.test_grid import CLIENTS, CLOSE, STAGES, aggregated, engine, losing

RAY = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "logging_level": "ERROR", "log_to_driver": False}
BACKEND = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": RAY}
SEEDS = ((1, "Unmask"), (2, "RemoveNoise"))
"""How many nodes vanish, and where, when seeds of noise are due."""
EITHER = Policy(
    mechanisms=frozenset({"none", "skellam"}), schemes=NO_NOISE.schemes | Policy().schemes, without_guarantee=True
)


def simulate(main, apps=None, nodes=CLIENTS):
    """Run a ServerApp over simulated nodes; what it raises is raised."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    server = ServerApp()
    server.main()(main)
    run_simulation(
        server, apps or client_app([vanish, DordisMod(EITHER)]), num_supernodes=nodes, backend_config=BACKEND
    )


def test_rounds_come_to_what_our_engine_gives_though_nodes_vanish_at_any_stage(tmp_path):
    """All in one simulation, which takes long to start."""
    seen = {}

    def play(grid, kind, name, train_config, **more):
        settings = {"output": str(tmp_path / kind.__name__ / name), "federation.rounds": 1}
        private = DordisGrid(grid, settings | {"federation.clients": CLIENTS} | more)
        result = kind().start(private, model(), num_rounds=1, train_config=train_config)
        run = run_records.load_run(private.path)
        assert run.manifest.how.startswith("simulated by Flower")
        seen[kind, name] = vector(result.arrays), *run.rounds

    def main(grid, context):
        for stage in STAGES:
            for kind in (FedAvg, FedAdam):
                play(grid, kind, stage, losing(2, stage), **{"privacy.noise.kind": "none"})
        for count, stage in SEEDS:
            lost = losing(count, stage)
            lost["at"] = "Unmask"  # the next node, whose seed is then asked of the others
            play(grid, FedAvg, f"seeds-{stage}", lost, **{"privacy.noise.scheme": "exact"})  # everyone owes seeds

    simulate(main)
    for kind in (FedAvg, FedAdam):
        for stage in STAGES:
            check_like_our_engine(kind(), stage, *seen[kind, stage])
    records_of_seeds = [seen[FedAvg, f"seeds-{stage}"][1] for _, stage in SEEDS]
    assert [counted(record) for record in records_of_seeds] == [{"Unmask": 2}, {"Unmask": 1, "RemoveNoise": 2}]
    for record in records_of_seeds:
        check_all_due_noise_is_removed(record)


def check_like_our_engine(strategy, stage, arrays, record):
    """A strategy has the model, and the records the dropouts, that our own engine gives on the same updates."""
    expected = engine(2, stage)
    mean = expected.result.aggregate.mean
    assert np.abs(arrays - aggregated(strategy, MemoryGrid([None] * CLIENTS), mean)).max() < CLOSE
    assert record.survivors == expected.record.survivors
    assert counted(record) == counted(expected.record)


def check_all_due_noise_is_removed(record):
    """Everybody has uploaded, and no component stays beyond the plan."""
    setting = Setting(ParticipationSchedule(CLIENTS, CLIENTS, 1), dim=DIM)
    planned = RoundPlan(XNoise(scheme="exact"), setting, 6.0).plan.noise
    assert record.left == pytest.approx(float(planned.variance_left(range(CLIENTS), b"", {})))
    assert record.charged == pytest.approx(float(planned.charged_variance(range(CLIENTS), b"")))


def counted(record):
    return {stage: len(gone) for stage, gone in record.dropped.items()}


def test_a_node_without_our_mod_is_named(tmp_path):
    def main(grid, context):
        private = DordisGrid(grid, {"output": str(tmp_path), "federation.rounds": 1})
        with pytest.raises(InputError, match="put dordis_mod among the mods"):
            FedAvg().start(private, model(), num_rounds=1)

    simulate(main, client_app([]), nodes=2)
