"""Runs whose updates are folded: who takes part, what is sent and what is told of it."""

import numpy as np
import pytest

import dordis
from dordis import AppClient, AppServer, wire
from dordis.apps import histogram
from dordis.config.reading import read_config
from dordis.errors import InputError
from dordis.library import as_config
from dordis.records.run_records import load_run
from dordis.report.facts import read_facts
from dordis.report.tables import settings_table
from dordis.rounds.invitation import SendModel
from dordis.simulation.profiling import rehearse
from dordis.simulation.run import prepare

pytestmark = pytest.mark.filterwarnings("ignore:an epsilon of")  # little noise shows what folding does

LENGTH = 30_000


class Server(AppServer):
    """Do nothing with sums of long updates."""

    folds = True

    @property
    def dim(self):
        return LENGTH

    def use_output(self, round, aggregate):
        pass

    def state(self):
        return {}


class Client(AppClient):
    """Give an update that has nothing to do with those of others."""

    def __init__(self, place):
        self._rng = np.random.default_rng(place)

    def prepare_data(self, round, model):
        drawn = self._rng.standard_normal(LENGTH)
        return drawn / np.linalg.norm(drawn)


SMALL = {
    "federation": {"clients": 8, "per_round": 8, "rounds": 3},
    "app": {"options": {"model": "softmax"}},
    "privacy": {"epsilon": 50.0, "projection": 64},
    "simulation": {"fidelity": "full", "dropout": {"kind": "none"}},
}

ADAPTIVE = {
    "app": {"server": f"{__name__}:Server", "client": f"{__name__}:Client"},
    "federation": {"clients": 40, "per_round": 20, "rounds": 3},
    "privacy": {"epsilon": 20.0, "projection": "adaptive"},
    "simulation": {"fidelity": "ideal", "dropout": {"kind": "none"}},
}


def test_clients_make_the_server_s_next_model_from_what_was_delivered(tmp_path):
    """The model is sent in the first round alone: after it, all who took part have one with the right digest."""
    result = dordis.run(SMALL | {"output": str(tmp_path)})
    first, *others = load_run(result.path).rounds
    assert first.model_bytes > 8 * 4 * 650
    assert [record.model_bytes for record in others] == [0, 0]
    assert {record.dim for record in (first, *others)} == {650}
    unfolded = dordis.run(SMALL | {"output": str(tmp_path), "privacy": {"epsilon": 50.0}})
    before = load_run(unfolded.path).rounds[1]
    assert others[0].up < before.up - 8 * 1000
    assert others[0].down < before.down - 8 * 1000


def test_clients_that_missed_rounds_get_their_sums_where_these_are_shorter_than_the_model(tmp_path):
    """What is sent is what the list of clients of every round says, to the byte."""
    few = SMALL | {"output": str(tmp_path), "federation": {"clients": 24, "per_round": 8, "rounds": 7}}
    records = load_run(dordis.run(few).path).rounds
    model, missed = 4 * 650, rehearse(prepare(as_config(few))).missed_bytes
    assert 3 * missed < model
    piece, last = wire.size(SendModel(0, bytes(model))), {}
    for record in records:
        assert record.invited == 8
        away = [record.number - last[u] - 1 if u in last else model for u in record.clients]
        last |= dict.fromkeys(record.clients, record.number)
        replayed = [count for count in away if count * missed < model]
        assert record.replay_bytes == sum(replayed) * missed
        assert record.model_bytes == (8 - len(replayed)) * piece
    assert sum(record.replay_bytes > missed for record in records) >= 3
    unfolded = few | {"privacy": {"epsilon": 50.0, "projection": "off"}}
    assert 2 * missed < rehearse(prepare(as_config(unfolded))).missed_bytes < model
    remembering = few | {"app": {"options": {"model": "softmax", "optimiser": {"kind": "fedavg", "momentum": 0.5}}}}
    assert rehearse(prepare(as_config(remembering))).missed_bytes is None


def test_a_run_says_into_what_it_folds(tmp_path):
    result = dordis.run(SMALL | {"output": str(tmp_path), "simulation": {"fidelity": "ideal"}})
    (facts,) = read_facts([result.path])
    told = dict(settings_table(facts).rows)
    assert told["folded into"].startswith("64 coordinates, 10.2 times fewer, error of a sum + ")
    assert facts.run.manifest.plan.upload_bytes == 64 * facts.run.manifest.plan.bits // 8


def design_of(*keys):
    return prepare(read_config(keys=keys)).job.design


def test_small_models_means_and_histograms_are_not_folded():
    assert design_of().setting.buckets == 0
    app = "dordis.apps.mean"
    assert (
        design_of(f"app.server={app}:Server", f"app.client={app}:Client", "app.options.dim=100000").setting.buckets == 0
    )
    assert not histogram.Server.folds


def test_more_coordinates_than_there_are_is_a_mistake():
    with pytest.raises(InputError, match=r"privacy.projection = 600 is, in whole blocks, no less than the 650"):
        design_of("privacy.projection=600")
    assert design_of("privacy.projection=300").setting.buckets == 512


def test_folding_adapts_to_updates_that_do_not_agree(tmp_path):
    settings = ADAPTIVE | {"output": str(tmp_path)}
    first, second, third = load_run(dordis.run(settings).path).rounds
    automatic = prepare(as_config(settings | {"privacy": {"epsilon": 20.0}})).job.design.setting.buckets
    assert first.buckets == automatic > 0
    assert second.buckets < first.buckets
    assert third.alignment.rounds == 3
    for record in (first, second, third):
        assert 0 < record.alignment.gamma(20) < 1
        assert abs(record.alignment.squared - 1 / 20) < 7 * record.alignment.deviation


def test_a_run_that_is_stopped_goes_on_with_what_it_knows_of_its_sums(tmp_path):
    job = prepare(as_config(ADAPTIVE))
    run = job.start(tmp_path, "")
    first = next(run.rounds()).record
    again = job.resume(run.records.path)
    second = next(again.rounds()).record
    assert (second.number, second.alignment.rounds) == (2, 2)
    assert 0 < second.buckets < first.buckets
