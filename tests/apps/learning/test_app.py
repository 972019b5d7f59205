"""Server and clients together: learning on digits, with and without noise."""

import sys
import warnings

import msgspec
import numpy as np
import pytest

import dordis
from dordis.apps.learning import Client, Server, Settings
from dordis.apps.learning.app import Progress, worse_than_constant
from dordis.apps.learning.optim import FedAdam, FedAvg
from dordis.apps.learning.partitioned_data import Iid
from dordis.apps.learning.trained_model import SAVED_MODEL
from dordis.errors import InputError, MissingExtra
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting
from dordis.protocols.encoded_sums import Aggregate
from dordis.rounds.app import RoundInfo, Task
from dordis.rounds.model import ModelBytes
from tests.apps.aggregates import summed

OWN = "tests.apps.learning.own_model"


def info_of(index):
    return RoundInfo(index + 1, index)


def learn(task, *, rounds, per_round, sigma=0.0, server=None, first=0):
    """Run rounds in the clear: updates clipped to norm 1, and Gaussian noise on the sum."""
    server = server or Server.from_task(task)
    for number in range(first, first + rounds):
        rng = np.random.default_rng((task.seed, number))
        updates = []
        for place in rng.permutation(task.population)[:per_round]:
            update = Client.from_task(task, place).prepare_data(info_of(number), server.model())
            updates.append(update / max(1.0, np.linalg.norm(update)))
        total = np.sum(updates, axis=0) + rng.normal(0, sigma, server.dim)
        server.use_output(info_of(number), Aggregate(total, (per_round,), np.array([per_round])))
    return server


@pytest.mark.parametrize("seed", range(3))
def test_the_default_job_learns_digits_under_its_noise(seed):
    """100 clients, 50 a round of whom 10 drop out, epsilon 6.  In 30 trials it was never below 89 %."""
    run = ParticipationSchedule(population=100, per_round=50, rounds=20)
    sigma = plan(Setting(run, dim=650, clip=1.0, delta=1e-5), epsilon=6).sigma
    server = learn(Task({}, 100, seed), rounds=20, per_round=40, sigma=sigma)
    assert server.evaluate()["accuracy"] > 0.88


def test_without_noise_it_learns_better():
    server = learn(Task({}, 100, 1), rounds=20, per_round=40)
    found = server.evaluate()
    assert found["accuracy"] > 0.93
    assert server.model().shape == (server.dim,) == (650,)


@pytest.mark.parametrize(
    "options",
    [
        {"optimiser": {"kind": "fedadam"}},
        {"optimiser": {"kind": "fedavg", "lr": 0.5, "momentum": 0.8}, "average": 0.0},
        {
            "model": "mlp",
            "options": {"hidden": 16},
            "epochs": 10,
            "lr": 0.5,
            "optimiser": {"kind": "fedavg", "lr": 1.0},
        },
        {"batch": 5, "epochs": 2, "partition": {"kind": "lda", "alpha": 10.0}},
    ],
)
def test_other_settings_learn_too(options):
    assert learn(Task(options, 20, 2), rounds=8, per_round=10).evaluate()["accuracy"] > 0.8


def test_options_are_settings():
    text = {"epochs": 2, "partition": {"kind": "iid"}, "optimiser": {"kind": "fedadam", "lr": 0.2}}
    assert msgspec.convert(text, Settings) == Settings(epochs=2, partition=Iid(), optimiser=FedAdam(lr=0.2))
    assert (Settings().partition, Settings().optimiser) == (None, FedAvg())


def test_a_client_is_determined_by_seed_round_and_place():
    def update(seed=1, place=3, number=0):
        task = Task({"batch": 4}, 10, seed)
        return Client.from_task(task, place).prepare_data(info_of(number), np.zeros(650))

    np.testing.assert_array_equal(update(), update())
    for other in (update(seed=2), update(place=4), update(number=1)):
        assert not np.array_equal(update(), other)


@pytest.mark.parametrize(
    ("optimiser", "follows"),
    [({"kind": "fedavg"}, True), ({"kind": "fedavg", "momentum": 0.5}, False), ({"kind": "fedadam"}, False)],
)
def test_a_client_makes_the_next_model_itself_where_the_step_of_the_server_needs_no_memory(optimiser, follows):
    task = Task({"optimiser": optimiser}, 10, 5)
    server = Server.from_task(task)
    travelled = ModelBytes.from_numbers(server.model(), server.dtype)
    aggregate = summed([np.linspace(-1, 1, 650) / 3])
    following = Client.from_task(task, 0).next_model(info_of(0), travelled.array, aggregate)
    server.use_output(info_of(0), aggregate)
    if follows:
        assert (
            ModelBytes.from_numbers(following, server.dtype).digest
            == ModelBytes.from_numbers(server.model(), server.dtype).digest
        )
    else:
        assert following is None


def test_clients_have_all_samples_between_them():
    task = Task({"epochs": 1, "lr": 1.0, "balance": 0.0, "partition": {"kind": "iid"}}, 3)
    together = Task({"epochs": 1, "lr": 1.0, "balance": 0.0, "partition": {"kind": "iid"}}, 1)
    apart = np.mean(
        [Client.from_task(task, place).prepare_data(info_of(0), np.zeros(650)) for place in range(3)], axis=0
    )
    np.testing.assert_allclose(apart, Client.from_task(together, 0).prepare_data(info_of(0), np.zeros(650)))


@pytest.mark.parametrize("optimiser", [{"kind": "fedavg", "momentum": 0.5, "lr": 1.0}, {"kind": "fedadam"}])
def test_a_restored_server_goes_on_as_if_nothing_had_happened(optimiser):
    task = Task({"optimiser": optimiser}, 10, 5)
    whole = learn(task, rounds=4, per_round=5)
    half = learn(task, rounds=2, per_round=5)
    restored = Server.from_task(task)
    restored.restore({name: np.array(value) for name, value in half.state().items()})
    assert restored.evaluate() == half.evaluate()
    learn(task, rounds=2, per_round=5, server=restored, first=2)
    np.testing.assert_array_equal(restored.model(), whole.model())
    np.testing.assert_array_equal(restored.average_parameters(), whole.average_parameters())


@pytest.mark.parametrize(("steps", "written"), [({}, False), ({"centred": False}, True), ({"scale": 2}, False)])
def test_a_model_file_is_written_only_if_it_has_all_steps_of_the_preprocessing(steps, written, tmp_path):
    options = {"centred": steps["centred"]} if "centred" in steps else {}
    if "scale" in steps:
        x, y = np.eye(10, dtype=np.uint8), np.arange(10)
        np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y, **steps)
        options = {"data": str(tmp_path / "own.npz")}
    Server.from_task(Task(options, population=4)).export(tmp_path)
    assert (tmp_path / SAVED_MODEL).is_file() == written


def test_a_state_of_another_model_is_refused():
    with pytest.raises(InputError, match="3 parameters"):
        Server.from_task(Task({}, 10)).restore({"parameters": np.zeros(3)})


def test_before_the_first_round_the_model_is_the_initial_one():
    server = Server.from_task(Task({}, 10))
    assert server.evaluate()["accuracy"] == pytest.approx(0.1)
    server.model()[:] = 1.0
    assert not server.model().any()


def test_what_is_evaluated_is_the_average_of_the_models():
    server = Server.from_task(Task({"average": 0.5, "optimiser": {"kind": "fedavg", "lr": 1.0}}, 10))
    for number in range(2):
        server.use_output(info_of(number), summed([np.ones(650)]))
    np.testing.assert_allclose(server.average_parameters(), (0.5 * 1 + 1 * 2) / 1.5)
    np.testing.assert_allclose(server.model(), 2)


def test_without_weight_of_the_past_the_newest_model_is_kept_once():
    server = Server.from_task(Task({"average": 0.0, "optimiser": {"kind": "fedavg", "lr": 1.0}}, 10))
    written = {
        "average": np.full(650, 7.0),
        "average_weight": np.ones(()),
    }  # by earlier versions
    server.restore({"parameters": np.full(650, 7.0), **written})
    server.use_output(info_of(0), summed([np.ones(650)]))
    assert server.state().keys() == {"parameters"}
    np.testing.assert_array_equal(server.average_parameters(), server.model())
    np.testing.assert_array_equal(server.model(), 8.0)


def test_a_model_of_ones_own_is_named():
    options = {"model": f"{OWN}:Centroids", "options": {"spread": 2.0}, "epochs": 1, "centred": False}
    server = learn(Task(options, 10), rounds=10, per_round=10)
    assert server.dim == 640
    assert server.evaluate()["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "softmacks"}, "softmax, linear, mlp, cnn"),
        ({"model": "no_such_module:Net"}, "no_such_module"),
        ({"model": f"{OWN}:Nothing"}, "Nothing"),
        ({"model": "softmax", "options": {"hidden": 3}}, "hidden"),
        ({"epochs": 0}, "epoch"),
        ({"average": 1.0}, "average"),
        ({"data": "no-such-file.npz"}, "no-such-file"),
        ({"partition": {"kind": "natural"}}, "keys"),
        ({"data": "own.npz", "centred": True}, "digits only"),
        ({"sead": 1}, "sead"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        Server.from_task(Task(options, 10))


def test_what_is_no_model_is_refused():
    with pytest.raises(InputError):  # without torch it may be a module still: then the extra is missing
        Server.from_task(Task({"model": f"{OWN}:broken"}, 10))


def test_without_torch_its_models_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match="torch"):
        Server.from_task(Task({"model": f"{OWN}:broken"}, 10))


def test_a_model_that_imports_torch_names_the_extra(monkeypatch, tmp_path):
    (tmp_path / "needs_torch.py").write_text("import torch\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match="torch"):
        Server.from_task(Task({"model": "needs_torch:net"}, 10))


def test_places_and_models_that_do_not_fit_are_refused():
    task = Task({}, 10)
    for place in (-1, 10):
        with pytest.raises(InputError, match="0 to 9"):
            Client.from_task(task, place)
    with pytest.raises(InputError, match="650"):
        Client.from_task(task, 0).prepare_data(info_of(0), np.zeros(3))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("WideGradient", r"gradient\(\) of the model returns an array of shape \(641,\): it must be \(640,\)"),
        ("FlatScores", r"scores\(\) of the model returns an array of shape \(2,\): it must be \(2, 10\)"),
        ("WordyScores", r"scores\(\) of the model returns dict, not an array of numbers"),
    ],
)
def test_a_model_whose_methods_return_something_else_is_refused_before_any_round(model, words):
    with pytest.raises(InputError, match=words):
        Server.from_task(Task({"model": f"{OWN}:{model}"}, 10, 0))


LABELS = np.array([0, 0, 0, 1])


def warned(losses, **metrics):
    progress = Progress()
    for loss in losses:
        progress.add({"loss": loss, "accuracy": 1.0, **metrics}, LABELS)
    return progress.take_warnings()


def test_a_loss_that_rises_warns_within_three_rounds_and_once():
    (text,) = warned([1.0, 2.0, 4.0, 8.0])
    assert "risen 2 rounds in a row, to 4" in text
    assert not warned([1.0, 0.2, 0.3, 0.4])
    assert not warned([1.0, 0.9, 1.2, 1.1])


def test_a_model_that_is_no_better_than_a_constant_warns():
    (text,) = warned([1.0, 1.0, 1.0], accuracy=0.75)
    assert "accuracy is 75.0%, and the most frequent class has 75.0%" in text
    assert not warned([1.0, 1.0], accuracy=0.75)
    assert worse_than_constant({"r2": -0.5}, LABELS) == "R^2 is -0.5"
    assert worse_than_constant({"accuracy": 0.7, "auc": 0.9}, LABELS) == ""
    assert worse_than_constant({"perplexity": 3.0}, LABELS) == ""


def test_a_diverging_run_warns_within_three_rounds(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 200)
    rows, seen = {"x": x, "y": 3 * x}, []
    table = dordis.Table(label="y", ranges={"x": (-1, 1), "y": (-3, 3)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dordis.train(
            "linear", rows, table=table, test=rows, epsilon=None, rounds=4, output=tmp_path, average=0.0,
            optimiser={"kind": "fedavg", "lr": 30.0}, clip=100.0, on_round=seen.append,
        )  # fmt: skip
    texts = [str(warning.message) for warning in caught]
    assert any(text.startswith("round 3: the loss has risen") for text in texts)
    assert any("no better than a constant" in text for text in texts)
    assert len(seen) == 4
