"""Whatever a train function does, what leaves its node up to the masked input is the same; its owner alone is told."""

import logging
import sys
import threading

import numpy as np
import pytest

from dordis.owner.directory import ClientDirectory
from dordis.owner.participation import FileParticipation
from dordis.records import run_records

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("deployed")]

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from dordis.errors import RoundFailed
from dordis.integrations.flower import DordisGrid, DordisMod
from dordis.integrations.flower.messages import from_record
from dordis.integrations.flower.pins import TRAIN_SECONDS
from dordis.rounds.user_code import LEAST_WINDOW, TimedTraining, ZeroOnFailure
from tests.integrations.flower.apps import NO_NOISE, MemoryGrid, client_app, model, pin, record_of, update, vector

CLIENTS, FAILING, HANGING = 4, 1, 60.0
A_NAME = "the name of a patient"


def raises(message):
    raise ValueError(A_NAME)


def exits(message):
    sys.exit(A_NAME)


def returns(arrays):
    return lambda message: Message(RecordDict({"arrays": record_of(arrays)}), reply_to=message)


WAYS = {
    "raises": raises,
    "exits": exits,
    "is an error": lambda message: Message(Error(7, A_NAME), reply_to=message),
    "has no model": lambda message: Message(RecordDict(), reply_to=message),
    "has another shape": returns({"weight": np.zeros(3), "bias": np.zeros(4)}),
    "is not finite": returns({"weight": np.full((4, 5), np.inf), "bias": np.zeros(4), "steps": np.array(7)}),
    "is of texts": returns({"weight": np.full((4, 5), "x"), "bias": np.zeros(4), "steps": np.array(7)}),
}


def failing(way) -> ClientApp:
    app = ClientApp(mods=[DordisMod(NO_NOISE)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return way(message)

    return app


class Watching(MemoryGrid):
    """Keep the kinds and lengths of what the failing node answers."""

    def _push(self, message: Message) -> str:
        name = super()._push(message)
        if message.metadata.dst_node_id == list(self.contexts)[FAILING]:
            sealed, refusal = from_record(self._replies[name].content)
            kept = [(len(frame), len(bulk)) for frame, bulk in sealed]
            self.answers = [*getattr(self, "answers", []), (kept, refusal)]
        return name


def play(folder, apps, registry=None, config=None):
    if registry is None:
        registry, config = pin(folder, CLIENTS)
    grid = Watching(apps, config)
    settings = {"output": str(folder / "runs"), "privacy.noise.kind": "none", "federation.rounds": 1}
    private = DordisGrid(grid, settings | {"federation.tries": 1}, registry=registry)
    return FedAvg().start(private, model(), num_rounds=1), private, grid


def failures_of_nodes(folder):
    """Return what the owners of pinned nodes are told of zero updates, each of those who have any."""
    found = [ClientDirectory(path).status.read() for path in (folder / "state").iterdir()]
    assert len(found) == CLIENTS
    assert all("in round 1" in status.last for status in found)
    return [status.failures for status in found if status.zero_updates]


@pytest.mark.parametrize("way", WAYS)
def test_a_train_function_that_fails_shows_in_nothing_that_leaves_the_node(tmp_path, caplog, way):
    honest = client_app([DordisMod(NO_NOISE)])
    for name in ("honest", "failing"):
        (tmp_path / name).mkdir()
    _, _, expected = play(tmp_path / "honest", [honest] * CLIENTS)
    with caplog.at_level(logging.ERROR, "dordis.flower"):
        apps = [failing(WAYS[way]) if place == FAILING else honest for place in range(CLIENTS)]
        result, private, grid = play(tmp_path / "failing", apps)
    assert grid.answers == expected.answers
    assert not any(A_NAME.encode() in content for content in grid.seen)
    assert "continues without its result" in caplog.text
    others = sum(update(place) for place in range(CLIENTS) if place != FAILING)
    assert np.abs(CLIENTS * (vector(result.arrays) - vector(model())) - others).max() < 1e-3
    assert run_records.load_run(private.path).rounds[0].survivors == (CLIENTS,)
    counted = (tmp_path / "failing" / "state").glob("*/participations")
    assert [FileParticipation(path).count() for path in counted] == [1] * CLIENTS
    assert failures_of_nodes(tmp_path / "failing") == [{"training failed": 1}]
    assert failures_of_nodes(tmp_path / "honest") == []


def test_a_train_function_that_takes_too_long_shows_in_nothing_that_leaves_the_node(tmp_path, caplog, monkeypatch):
    released, waited = threading.Event(), []

    def hangs(message):
        released.wait()
        return Message(RecordDict(), reply_to=message)

    def timed(seconds, tell_owner, note):
        if seconds != HANGING:
            return ZeroOnFailure(tell_owner, note)
        return TimedTraining(seconds, tell_owner, wait=waited.append, note=note)

    monkeypatch.setattr("dordis.integrations.flower.mod.user_code_for", timed)
    honest = client_app([DordisMod(NO_NOISE)])
    apps = [failing(hangs) if place == FAILING else honest for place in range(CLIENTS)]
    registry, config = pin(tmp_path, CLIENTS)
    config[FAILING][TRAIN_SECONDS] = HANGING
    try:
        result, *_ = play(tmp_path, apps, registry, config)
    finally:
        released.set()
    assert LEAST_WINDOW < waited[0] <= HANGING  # what is left of the time when the training has been started
    assert "was not finished after 60 seconds" in caplog.text
    assert failures_of_nodes(tmp_path) == [{"too late": 1}]
    others = sum(update(place) for place in range(CLIENTS) if place != FAILING)
    assert np.abs(CLIENTS * (vector(result.arrays) - vector(model())) - others).max() < 1e-3


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e30])
def test_a_model_on_which_training_overflows_is_refused(tmp_path, caplog, monkeypatch, value):
    monkeypatch.setattr("dordis.integrations.flower.grid.check_usable", lambda model: None)  # a malicious server
    registry, config = pin(tmp_path, CLIENTS)
    grid = MemoryGrid([client_app([DordisMod(NO_NOISE)])] * CLIENTS, config)
    settings = {"output": str(tmp_path / "runs"), "privacy.noise.kind": "none", "federation.rounds": 1}
    private = DordisGrid(grid, settings | {"federation.tries": 1}, registry=registry)
    with pytest.raises(RoundFailed):
        FedAvg().start(private, model(value), num_rounds=1)
    assert "the model has numbers that are not finite or beyond" in caplog.text
