"""Runs whose updates are folded: who takes part, what is sent and what is told of it."""

import pytest

import dordis
from dordis.apps import histogram
from dordis.errors import InputError
from dordis.federation.records import load
from dordis.report.facts import gather
from dordis.report.tables import settings
from dordis.simulation.reading import read
from dordis.simulation.run import prepare

SMALL = {
    "federation": {"clients": 8, "per_round": 8, "rounds": 3},
    "app": {"options": {"model": "softmax"}},
    "privacy": {"epsilon": 50.0, "projection": 64},
    "simulation": {"fidelity": "full", "dropout": {"kind": "none"}},
}


def test_clients_make_the_server_s_next_model_from_what_was_delivered(tmp_path):
    """The model is sent in the first round alone: after it, all who took part have one with the right digest."""
    result = dordis.run(SMALL | {"output": str(tmp_path)})
    first, *others = load(result.path).rounds
    assert first.model_bytes > 8 * 4 * 650
    assert [record.model_bytes for record in others] == [0, 0]
    assert {record.dim for record in (first, *others)} == {650}
    unfolded = dordis.run(SMALL | {"output": str(tmp_path), "privacy": {"epsilon": 50.0}})
    before = load(unfolded.path).rounds[1]
    assert others[0].up < before.up - 8 * 1000
    assert others[0].down < before.down - 8 * 1000


def test_a_run_says_into_what_it_folds(tmp_path):
    result = dordis.run(SMALL | {"output": str(tmp_path), "simulation": {"fidelity": "ideal"}})
    (facts,) = gather([result.path])
    told = dict(settings(facts).rows)
    assert told["folded into"].startswith("64 coordinates, 10.2 times fewer, error of a sum + ")
    assert facts.run.manifest.plan.upload_bytes == 64 * facts.run.manifest.plan.bits // 8


def design_of(*keys):
    return prepare(read(keys=keys)).job.design


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
