"""Private rounds over Flower's messages come to what our own engine comes to, whoever vanishes."""

import struct

import msgspec
import numpy as np
import pytest

from dordis.errors import InputError, TooManyDropouts
from dordis.ledger.ledger import verify_ledger
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.noise_strategies import NoNoise
from dordis.privacy.setting import Setting
from dordis.protocols.secagg import SECAGG
from dordis.records import run_records
from dordis.records.run_records import RunRecords
from dordis.report.page import write_report
from dordis.runs.coordinator import FinishedRound
from dordis.runs.plan import RoundPlan
from dordis.simulation.run import home_of_updates, single_round

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytestmark = pytest.mark.flower

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian

from dordis.integrations.flower import DordisGrid, DordisMod, dordis_mod
from dordis.integrations.flower.messages import Layout, from_record
from dordis.integrations.flower.pins import WEIGHT
from tests.integrations.flower.apps import (
    DIM,
    NO_NOISE,
    SECRET,
    MemoryGrid,
    client_app,
    model,
    pin,
    record_of,
    update,
    vanish,
    vector,
)

STAGES = ("Invite", "AdvertiseKeys", "ShareKeys", "DeliverShares", "CollectInput", "Agree", "Unmask")
CLIENTS = 10
CLOSE = 1e-4
"""Between two sums of the same updates, whose rounding differs: far above the grid's step, far below an update."""


class LosingFirst:
    """The first clients leave at a request."""

    def __init__(self, lost: int, stage: str) -> None:
        self._lost, self._stage = lost, stage

    def available(self, index, clients):
        return frozenset(clients)

    def leaving(self, index, clients):
        return {u: self._stage for u in clients if u <= self._lost}


def engine(lost: int, stage: str) -> FinishedRound:
    """Run the same round in our own engine."""
    setting = Setting(ParticipationSchedule(CLIENTS, CLIENTS, 2), dim=DIM)
    dropout = LosingFirst(lost, stage)
    entropy = np.random.default_rng(5).bytes
    return single_round(
        home_of_updates(RoundPlan(NoNoise(), setting, 6.0), SECAGG, lambda u: update(u - 1), entropy, dropout)
    )


def settings(folder, **more) -> dict:
    return {"output": str(folder), "federation.rounds": 2, "privacy.noise.kind": "none"} | more


def large() -> ArrayRecord:
    """Return a model with many coordinates that nobody changes."""
    return record_of({"weight": np.zeros((4, 5), np.float32), "bias": np.zeros(4, np.float32), "x": np.zeros(50000)})


def losing(lost: int, stage: str) -> ConfigRecord:
    return ConfigRecord({"lose-at": stage, "lost": lost})


@pytest.fixture
def grid() -> MemoryGrid:
    return MemoryGrid([client_app([vanish, DordisMod(NO_NOISE)])] * CLIENTS)


def aggregated(strategy: FedAvg, grid: MemoryGrid, mean: np.ndarray) -> np.ndarray:
    """Return what a strategy makes of a mean of updates."""
    strategy.configure_train(1, model(), ConfigRecord(), grid)
    arrays = Layout.from_record(model()).to_record(model(), vector(model()) + mean)
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1.0})})
    arrays, _ = strategy.aggregate_train(1, [Message(content, 1, "train")])
    return vector(arrays)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e30])
def test_a_model_that_every_node_refuses_is_not_sent(grid, tmp_path, value):
    private = DordisGrid(grid, settings(tmp_path))
    with pytest.raises(InputError, match="not finite or beyond 4294967296, from which no node trains"):
        FedAvg().start(private, model(value), num_rounds=1)
    assert grid.trips == 0


def test_a_strategy_may_take_the_arrays_out_of_a_reply(grid, tmp_path):
    """FedMedian does, to save memory; the median of equal replies is the private mean."""
    private, expected = DordisGrid(grid, settings(tmp_path)), engine(0, STAGES[0])
    result = FedMedian().start(private, model(), num_rounds=1)
    assert np.abs(vector(result.arrays) - vector(model()) - expected.result.aggregate.mean).max() < CLOSE


@pytest.mark.parametrize(("kind", "stage"), [*((FedAvg, stage) for stage in STAGES), (FedAdam, "DeliverShares")])
def test_a_strategy_gets_what_our_engine_gives_though_nodes_vanish(grid, tmp_path, kind, stage):
    private, expected = DordisGrid(grid, settings(tmp_path)), engine(2, stage)
    result = kind().start(private, model(), num_rounds=1, train_config=losing(2, stage))
    mean = expected.result.aggregate.mean
    assert np.abs(vector(result.arrays) - aggregated(kind(), grid, mean)).max() < CLOSE
    assert result.arrays["steps"].numpy() == pytest.approx(7)
    (record,) = run_records.load_run(private.path).rounds
    assert record.survivors == expected.record.survivors
    assert record.dropped == expected.record.dropped
    assert grid.trips == 1 + 7


def weighted_grid(weights) -> MemoryGrid:
    """Return nodes of which the first have weights."""
    config = {place: {WEIGHT: weight} for place, weight in enumerate(weights)}
    return MemoryGrid([client_app([vanish, DordisMod(NO_NOISE)])] * CLIENTS, config)


@pytest.mark.parametrize("lost", [0, 2])
def test_updates_count_for_the_weights_of_those_who_stay(tmp_path, lost):
    weights = np.array([0.25, 0.5, 1.0, 0.125, *[1.0] * (CLIENTS - 4)])
    private = DordisGrid(weighted_grid(weights.tolist()), settings(tmp_path, **{"performance.chunks": 3}))
    result = FedAvg().start(private, large(), num_rounds=1, train_config=losing(lost, "ShareKeys"))
    staying = range(lost, CLIENTS)
    mean = np.average([update(place) for place in staying], axis=0, weights=weights[lost:])
    assert np.abs(vector(result.arrays) - vector(large()) - mean).max() < 2 * CLOSE  # divided by less than their number
    assert msgspec.json.decode((private.path / "weights.json").read_bytes())["4"] == pytest.approx(0.125)


def test_a_weight_cannot_raise_what_a_client_changes(tmp_path):
    for weight in (0.0, 1.5, float("nan")):
        with pytest.raises(InputError, match=r"node \d+ cannot take part.*above 0 and at most 1.*dordis-weight"):
            FedAvg().start(DordisGrid(weighted_grid([weight]), settings(tmp_path)), model(), num_rounds=1)


def test_replies_are_known_by_the_node_that_was_asked(grid, tmp_path):
    private = DordisGrid(grid, settings(tmp_path))
    messages = FedAvg().configure_train(1, model(), losing(2, "DeliverShares"), private)
    replies = {reply.metadata.src_node_id: reply for reply in private.send_and_receive(messages)}
    lost = {node for node, context in grid.contexts.items() if context.node_config["partition-id"] < 2}
    assert {node for node, reply in replies.items() if reply.has_error()} == lost
    assert replies.keys() == set(grid.get_node_ids())
    assert "DeliverShares" in replies[lost.pop()].error.reason


def test_ledger_records_and_report_are_those_of_a_run(tmp_path, deployed):
    registry, config = pin(tmp_path, CLIENTS)
    grid = MemoryGrid([client_app([vanish, dordis_mod])] * CLIENTS, config)
    settings = {"output": str(tmp_path / "runs"), "federation": {"rounds": 2}, "privacy": {"epsilon": 6.0}}
    private = DordisGrid(grid, settings, registry=registry)
    FedAvg().start(private, model(), num_rounds=2, train_config=losing(2, "Unmask"))
    run = run_records.load_run(private.path)
    assert run.result is not None
    assert (run.result.stopped, run.result.rounds) == ("rounds", 2)
    assert 0 < run.rounds[0].epsilon < run.rounds[1].epsilon == run.result.epsilon <= 6
    for record in run.rounds:
        assert record.dropped == {"Unmask": (1, 2)}
        assert record.charged == pytest.approx(record.wanted)
    assert (
        verify_ledger(private.path / "ledger.jsonl", run=RunRecords.open(private.path).id).epsilon == run.result.epsilon
    )
    assert run.manifest.how.startswith("deployed")
    assert "Deployed: every client answered over the network" in write_report([private.path]).read_text()


def test_nodes_of_a_simulation_are_called_simulated(tmp_path, grid):
    private = DordisGrid(grid, settings(tmp_path))
    FedAvg().start(private, model(), num_rounds=1)
    assert run_records.load_run(private.path).manifest.how.startswith("simulated by Flower")
    assert "simulated by Flower" in write_report([private.path]).read_text()


def test_a_strategy_that_tells_nodes_apart_is_told_what_to_do(tmp_path, grid):
    class Apart(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for place, message in enumerate(super().configure_train(server_round, arrays, config, grid)):
                own = RecordDict({**message.content, "config": ConfigRecord({"lr": float(place)})})
                yield Message(own, message.metadata.dst_node_id, "train")

    with pytest.raises(InputError, match=r"different models or configs to different nodes.*the same records to all"):
        Apart().start(DordisGrid(grid, settings(tmp_path)), model(), num_rounds=1)
    assert grid.trips == 0


def test_an_input_stays_on_the_node_only_until_it_is_uploaded(tmp_path):
    sizes: list[tuple[set[str], int]] = []

    def watch(message, context, call_next):
        reply = call_next(message, context)
        frames, _ = from_record(message.content)
        kinds = {msgspec.msgpack.decode(frame[1:])["type"] for frame, _ in frames}
        sizes.append((kinds, recorddict_to_proto(context.state).ByteSize()))
        return reply

    grid = MemoryGrid([client_app([watch, DordisMod(NO_NOISE)])] * CLIENTS)
    FedAvg().start(DordisGrid(grid, settings(tmp_path)), large(), num_rounds=1)
    for kinds, size in sizes:
        holds_data = bool(kinds & {"Train", "AdvertiseKeys", "ShareKeys", "DeliverShares"})
        assert (size > 4 * 50000) is holds_data, kinds


def test_metrics_of_clients_leave_no_node(tmp_path, grid):
    result = FedAvg().start(DordisGrid(grid, settings(tmp_path)), model(), num_rounds=1)
    assert result.train_metrics_clientapp == {1: {}}
    assert result.evaluate_metrics_clientapp == {}
    secret = struct.pack("<d", float(SECRET))
    assert grid.seen
    assert not any(secret in content for content in grid.seen)


def test_too_many_lost_nodes_end_the_run_and_the_records_say_so(grid, tmp_path):
    private = DordisGrid(grid, settings(tmp_path, **{"federation.tries": 1}))
    with pytest.raises(TooManyDropouts):
        FedAvg().start(private, model(), num_rounds=1, train_config=losing(8, "ShareKeys"))
    assert run_records.load_run(private.path).result.stopped == "failed"


def test_no_round_beyond_those_that_the_noise_is_planned_for(grid, tmp_path):
    private = DordisGrid(grid, settings(tmp_path))
    with pytest.raises(InputError, match=r"planned for 2 rounds.*federation\.rounds"):
        FedAvg().start(private, model(), num_rounds=3)


def test_a_round_of_a_semi_honest_server_takes_six_trips(tmp_path):
    mod = DordisMod(msgspec.structs.replace(NO_NOISE, modes=frozenset({"semi-honest"})))
    grid = MemoryGrid([client_app([mod])] * CLIENTS)
    private = DordisGrid(grid, settings(tmp_path, **{"protocol.mode": "semi-honest", "federation.rounds": 3}))
    FedAvg().start(private, model(), num_rounds=3)
    assert grid.trips == 1 + 3 * 6  # docs/flower_deployment.md


def test_an_adaptive_clip_bound_costs_no_further_trip(tmp_path):
    grid = MemoryGrid([client_app([dordis_mod])] * CLIENTS)
    clip = {"privacy.clip": {"kind": "quantile", "start": 0.5}}
    private = DordisGrid(grid, {"output": str(tmp_path), "federation.rounds": 2, **clip})
    FedAvg().start(private, model(), num_rounds=2)
    first, second = run_records.load_run(private.path).rounds
    assert len(first.survivors) == 2
    assert second.clip != first.clip
    assert grid.trips == 1 + 2 * 7
