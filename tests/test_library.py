"""The library as people use it: train on objects, run a configuration, load what a run came to."""

import csv
import json

import numpy as np
import pytest

import dordis
from dordis.apps.learning import Model
from dordis.apps.learning.task import check_samples, samples

CLIENTS, FEATURES = 60, 4
WEIGHTS = np.array([1.0, -2.0, 0.5, 1.5])
DESCRIPTION = dordis.Table(label="label", client="person", ranges=(-4, 4), categories={"label": (0, 1)})


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Write a CSV of 60 clients: four features, a label that a line divides, and whose row it is."""
    path = tmp_path_factory.mktemp("data") / "clients.csv"
    rng = np.random.default_rng(7)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["a", "b", "c", "d", "label", "person"])
        for person in range(CLIENTS):
            x = rng.normal(size=(25, FEATURES))
            rows.writerows([*values.tolist(), int(values @ WEIGHTS > 0), f"p{person:02}"] for values in x)
    return path


def pairs(table):
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    held = {}
    for row in rows:
        held.setdefault(row["person"], []).append(([float(row[name]) for name in "abcd"], int(row["label"])))
    return {person: tuple(map(np.array, zip(*samples, strict=True))) for person, samples in held.items()}


def test_a_data_frame_is_enough(table, tmp_path):
    pd = pytest.importorskip("pandas", reason="needs pandas")
    # what a user writes:
    data = pd.read_csv(table)
    test = data[data.person >= "p50"]
    result = dordis.train(
        "softmax", data[data.person < "p50"], table=DESCRIPTION, test=test, epsilon=6, fidelity="ideal", output=tmp_path
    )
    # ends here
    assert result.metrics["accuracy"] > 0.9
    assert result.model.shape == ((FEATURES + 1) * 2,)
    assert 0 < result.epsilon <= 6
    assert json.loads((result.path / "manifest.json").read_text())["clients"] == 50


def test_rows_of_clients_in_a_data_frame_are_not_tested_if_there_are_others(table, tmp_path):
    pd = pytest.importorskip("pandas", reason="needs pandas")
    data = pd.read_csv(table)
    clients = data[data.person < "p50"]
    keys = {"table": DESCRIPTION, "epsilon": 6, "rounds": 1, "fidelity": "ideal", "output": tmp_path}
    kept, same = (dordis.train("softmax", clients, test=test, **keys) for test in (data, clients))
    manifest = json.loads((kept.path / "manifest.json").read_text())
    assert manifest["measured"] == (
        "test data = 250 inputs of 10 persons held out, no clients among them; 1,250 inputs of clients are left out"
    )
    assert "accuracy" in kept.metrics
    manifest = json.loads((same.path / "manifest.json").read_text())
    assert "1,250 inputs of the clients themselves" in manifest["measured"]
    assert "epsilon does not cover them" in manifest["measured"]


@pytest.mark.slow
def test_a_torch_module_comes_back_trained_and_is_saved_as_a_state_dict(table, tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    before = [parameter.clone() for parameter in module.parameters()]
    held = pairs(table)
    test = tuple(np.concatenate(part) for part in zip(*list(held.values())[50:], strict=True))
    result = dordis.train(
        module, list(held.values())[:50], test=test, epsilon=6, rounds=3, lr=1.0, dropout=0.1, output=tmp_path
    )
    assert result.metrics["accuracy"] > 0.85
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    with torch.no_grad():
        scores = result.model(torch.tensor(test[0], dtype=torch.float32))
    assert (scores.argmax(1).numpy() == test[1]).mean() == pytest.approx(result.metrics["accuracy"])
    saved = torch.load(result.path / "model.pt", weights_only=True)
    again = dordis.load(result.path, model=module)
    for name, value in result.model.state_dict().items():
        assert torch.equal(saved[name], value)
        assert torch.equal(again.model.state_dict()[name], value)
    assert (again.epsilon, again.history, again.stopped) == (result.epsilon, result.history, "rounds")
    assert result.report(tmp_path).read_text().startswith("<!DOCTYPE html>")


class Line(Model):
    """The difference of two scores is linear."""

    @property
    def dim(self):
        return FEATURES

    def gradient(self, parameters, x, y, offset):
        return x.T @ (1 / (1 + np.exp(-x @ parameters)) - y) / len(y)

    def scores(self, parameters, x):
        return np.stack([np.zeros(len(x)), x @ parameters], axis=1)


def test_a_model_of_ones_own_learns_from_a_mapping(table, tmp_path):
    held = pairs(table)
    result = dordis.train(
        Line(), held, test=held["p00"], epsilon=8, rounds=3, fidelity="ideal", output=tmp_path, average=0.0
    )
    cosine = result.model @ WEIGHTS / np.linalg.norm(result.model) / np.linalg.norm(WEIGHTS)
    assert cosine > 0.9
    np.testing.assert_array_equal(dordis.load(result.path).model, result.model)
    assert [line["round"] for line in result.history] == [1, 2, 3]
    assert [line["epsilon"] for line in result.history] == sorted(line["epsilon"] for line in result.history)


@pytest.mark.parametrize("model", ["softmax", pytest.param("cnn", marks=pytest.mark.torch)])
def test_models_of_ours_take_images(model, tmp_path):
    if model == "cnn":
        pytest.importorskip("torch", reason="needs the extra 'torch'")
    rng = np.random.default_rng(2)
    held = [(rng.normal(size=(4, 8, 8)), rng.integers(0, 2, 4)) for _ in range(12)]
    result = dordis.train(
        model, held, test=held[0], epsilon=8, rounds=1, fidelity="ideal", output=tmp_path, lr=0.1, epochs=1
    )
    assert 0 <= result.metrics["accuracy"] <= 1
    assert result.unit == "clients = 12, as they were given"


def test_numbers_are_learnt_from_a_list(tmp_path):
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(40, 30, 2))
    held = [(x, x @ [0.5, -1.0] + 0.25) for x in inputs]
    result = dordis.train(
        "linear", held, test=held[0], target="regression", lr=0.1, average=0.0,
        epsilon=8, rounds=8, fidelity="ideal", output=tmp_path,
    )  # fmt: skip
    assert result.metrics["rmse"] < 0.6  # guessing the mean gives 1.1
    assert result.model.shape == (3,)


def test_an_epsilon_that_promises_next_to_nothing_is_warned_about(table, tmp_path):
    with pytest.warns(UserWarning, match=r"an epsilon of 1e\+06 is above 20"):
        dordis.train("softmax", pairs(table), epsilon=1e6, rounds=1, fidelity="ideal", output=tmp_path)


def test_without_test_data_there_are_no_metrics(table, tmp_path):
    result = dordis.train("softmax", pairs(table), epsilon=8, rounds=1, fidelity="ideal", output=tmp_path)
    assert result.metrics == {}


def test_data_sets_loaders_and_lists_of_samples_are_the_pair_that_they_hold():
    torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
    x, y = torch.arange(10.0).reshape(5, 2), torch.tensor([0, 1, 0, 1, 1])
    whole = torch.utils.data.TensorDataset(x, y)
    for held in (
        (x.clone().requires_grad_(), y),
        (x.bfloat16(), y),
        (x.to_sparse(), y),
        whole,
        torch.utils.data.DataLoader(whole, batch_size=2),
        torch.utils.data.Subset(whole, range(5)),
        [(x[i], int(y[i])) for i in range(5)],
    ):
        found = check_samples("client 0", *samples([held])["0"], "classification")
        np.testing.assert_array_equal(found[0], x)
        np.testing.assert_array_equal(found[1], y)
    (two,) = samples([[(x[0], 0), (x[1], 1)]]).values()
    np.testing.assert_array_equal(two[0], x[:2])
    with pytest.raises(dordis.InputError, match=r"an entry for each client.*not DataLoader"):
        samples(torch.utils.data.DataLoader(whole))


def test_the_module_of_the_caller_stays_as_it_was(table, tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
    module = torch.nn.Sequential(torch.nn.Linear(FEATURES, 2), torch.nn.Dropout(0.1))
    dordis.train(module, list(pairs(table).values()), epsilon=None, rounds=1, fidelity="ideal", output=tmp_path)
    assert module.training


class Fixed:
    """A class whose objects cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("no copy")


def test_a_model_that_cannot_be_copied_is_refused(table, tmp_path):
    with pytest.raises(dordis.InputError, match=r"cannot be copied by copy\.deepcopy: no copy"):
        dordis.train(Fixed(), list(pairs(table).values()), epsilon=None, output=tmp_path)


def test_frozen_parameters_and_buffers_are_saved_with_the_trained_ones(table, tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra 'torch'")

    def make():
        module = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        module[0].requires_grad_(False)
        module.register_buffer("public", torch.rand(3))
        return module

    module, held = make(), list(pairs(table).values())
    result = dordis.train(module, held, epsilon=None, rounds=2, lr=0.5, fidelity="ideal", output=tmp_path)
    assert torch.equal(result.model[0].weight, module[0].weight)
    assert not torch.equal(result.model[2].weight, module[2].weight)
    file = result.save(tmp_path / "mine.dordis")
    copied = dordis.load(file).save(tmp_path / "copied.dordis")
    for where in (file, copied, result.path):
        other = make()
        again = dordis.load(where, model=other)
        np.testing.assert_array_equal(again.predict(held[0][0]), result.predict(held[0][0]))
        found = (again.module if where != result.path else again.model).state_dict()
        assert all(torch.equal(found[name], value) for name, value in result.model.state_dict().items())
        assert not torch.equal(other[0].weight, module[0].weight)
    other = make().requires_grad_()
    with pytest.raises(dordis.InputError, match="has 18 parameters, and the model has 58"):
        dordis.load(file, model=other)
    del (other := make()).public
    with pytest.raises(dordis.InputError, match=r"frozen parameters and buffers.*pass the module that was trained"):
        dordis.load(file, model=other)
    with pytest.raises(dordis.InputError, match=r"cannot take inputs of shape \(3,\)"):
        result.predict(np.ones((2, 3)))


@pytest.mark.parametrize("model", ["linear", "torch"])
@pytest.mark.parametrize("columns", [1, 2])
def test_a_regression_predicts_every_column_of_the_targets(model, columns, tmp_path):
    if model == "torch":
        torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
        model = torch.nn.Linear(3, columns)
    rng, weights = np.random.default_rng(4), np.array([[1.0, 0.0], [0.0, -1.0], [0.5, 0.5]])[:, :columns]
    held = [(x, x @ weights) for x in rng.normal(size=(12, 30, 3))]
    result = dordis.train(
        model, held, test=held[0], epsilon=None, rounds=40, lr=0.1, target="regression", output=tmp_path, average=0.0
    )
    assert result.metrics["rmse"] < 0.1
    said = result.predict(held[0][0])
    assert said.shape == ((30,) if columns == 1 else (30, columns))
    np.testing.assert_allclose(said.reshape(30, columns), held[0][1], atol=0.3)
    if model != "linear":
        for place in (result.path, result.save(tmp_path / "saved")):
            np.testing.assert_array_equal(dordis.load(place, torch.nn.Linear(3, columns)).predict(held[0][0]), said)
            with pytest.raises(dordis.InputError, match=r"has .* parameters, and the model has 40"):
                dordis.load(place, torch.nn.Linear(3, 10))


def test_next_tokens_are_predicted_for_every_position(tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
    torch.manual_seed(1)
    rng = np.random.default_rng(4)
    held = [(x, (x + 1) % 5) for x in rng.integers(0, 5, (6, 40, 3))]
    result = dordis.train(
        torch.nn.Embedding(5, 5), held, epsilon=None, rounds=30, lr=2.0, target="next-token", output=tmp_path
    )
    np.testing.assert_array_equal(result.predict(held[0][0]), held[0][1])
    for place in (result.path, result.save(tmp_path / "saved")):
        again = dordis.load(place, torch.nn.Embedding(5, 5))
        np.testing.assert_array_equal(again.predict(held[0][0]), held[0][1])


def test_tokens_reach_a_module_as_whole_numbers(tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
    module = torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Flatten(), torch.nn.Linear(8, 2))
    rng = np.random.default_rng(3)
    held = [(x, (x[:, 0] > 2).astype(int)) for x in rng.integers(0, 6, (20, 30, 2))]
    result = dordis.train(
        module, held, test=held[0], epsilon=None, rounds=20, lr=0.5, fidelity="ideal", output=tmp_path
    )
    assert result.metrics["accuracy"] > 0.9
    assert (result.predict(held[0][0]) == held[0][1]).mean() == result.metrics["accuracy"]
    pixels = [(x.astype(np.uint8), y) for x, y in held]
    line = dordis.train(
        torch.nn.Linear(2, 2), pixels, test=pixels[0], epsilon=None, rounds=2, fidelity="ideal", output=tmp_path
    )
    assert line.metrics["accuracy"] > 0.5
    with pytest.raises(dordis.InputError, match="index out of range"):
        dordis.train(module, [(x + 6, y) for x, y in held], epsilon=None, output=tmp_path)
    with pytest.raises(dordis.InputError, match="as whole numbers: mat1 and mat2"):
        dordis.train(module, [(x[:, :1], y) for x, y in held], epsilon=None, output=tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": [(np.zeros((2, 3)), [0])]}, "y of client 0 must hold 2 whole numbers"),
        ({"data": [(np.zeros((2, n)), [0, 1]) for n in (3, 4, 3)]}, "one shape"),
        ({"data": [np.zeros(3)]}, "must be a pair"),
        ({"data": []}, "0 clients are too few"),
        ({"data": 12}, "a table, not int"),
        ({"data": [(np.full((2, 3), np.nan), [0, 1])]}, "not finite"),
        ({"model": "forest"}, "no model 'forest'"),
        ({"epochs": 0}, "epoch or more"),
        ({"epoch": 3}, "no setting 'epoch': did you mean 'epochs'"),
        ({"features": "scattering"}, "features has no effect on data that are given in Python as arrays"),
        ({"per_round": 0}, "per_round"),
        ({"data": [(np.zeros((2, 3)), [0.0, 1.0])] * 5}, 'target="regression"'),
        ({"data": [(np.zeros((0, 3)), [])] * 5}, "client 0 has no samples: leave it out"),
        ({"data": [[([1.0], 0), ([1.0, 2.0], 1), ([1.0], 0)]] * 5}, "samples of client 0 do not have one shape"),
        ({"data": [([[1.0], [1.0, 2.0]], [0, 1])] * 5}, "x of client 0 is not an array of numbers"),
        ({"unit": "record"} | {"epsilon": None}, "no run without noise"),
        ({"protocol": "secag"}, "no protocol 'secag', pass one of secagg, secagg"),
        ({"target": "regresion"}, "it is one of classification, next-token, regression"),
        ({"optimiser": {"kind": "adam"}}, r"optimiser\.kind: Invalid value 'adam', it is one of fedavg"),
        ({"test": 3}, "test must be a pair"),
        ({"epsilon": -1.0}, "privacy.epsilon"),
        ({"epsilon": 0.0}, "privacy.epsilon"),
        ({"name": "a/b"}, "name"),
        ({"data": [(np.zeros((2, 3)), [0, 1])] * 2}, "2 clients are too few"),
        ({"data": [(np.zeros((2, 3)), [1, 1])] * 5}, "same class"),
        ({"data": [(np.zeros((2, 3)), [0, 5])] * 5}, "1, 2, 3, 4 never occur"),
        ({"lr": 1e30}, "lr must lie above 0"),
        ({"class_weights": {"7": 2.0}}, "class_weights name 7"),
        ({"table": dordis.Table(label="a")}, "must be a DataFrame"),
    ],
)
def test_a_mistake_is_one_clear_error_and_leaves_nothing(change, words, tmp_path):
    rng = np.random.default_rng(0)
    usual = {
        "model": "softmax",
        "data": [(rng.normal(size=(4, 3)), [0, 1, 0, 1]) for _ in range(12)],
        "epsilon": 6.0,
        "rounds": 1,
        "output": tmp_path,
        "fidelity": "ideal",
    }
    with pytest.raises(dordis.InputError, match=words):
        dordis.train(**(usual | change))
    assert not list(tmp_path.iterdir())


def test_a_configuration_is_a_struct_a_dictionary_or_a_file(tmp_path):
    settings = {
        "output": str(tmp_path / "runs"),
        "app": {"server": "tests.simulation.toys:Server", "client": "tests.simulation.toys:Client"},
        "federation": {"clients": 12, "per_round": 6, "rounds": 2},
        "simulation": {"fidelity": "ideal", "dropout": {"kind": "none"}},
    }
    first = dordis.run(settings)
    written = tmp_path / "run.toml"
    written.write_text((first.path / "config.toml").read_text())
    seen = []
    second = dordis.run(written, on_round=seen.append)
    assert [line["round"] for line in second.history] == [1, 2] == [finished.record.number for finished in seen]
    assert first.path != second.path
    assert second.stopped == "rounds"


def test_an_unknown_setting_is_named(tmp_path):
    with pytest.raises(dordis.InputError, match=r"federation\.round"):
        dordis.run({"federation": {"round": 3}})


def test_what_is_no_configuration_is_said_to_be_none():
    with pytest.raises(dordis.InputError, match="not int"):
        dordis.run(3)


def test_a_directory_without_a_run_is_said_to_be_none(tmp_path):
    with pytest.raises(dordis.InputError, match="there is no run at"):
        dordis.load(tmp_path)
    with pytest.raises(dordis.InputError, match=r"no run and no saved model at .*absent"):
        dordis.load(tmp_path / "absent")


def test_the_settings_of_plain_fedavg_give_plain_fedavg(table, tmp_path):
    """The reference is a loop in torch, with the settings that docs/tutorials/pytorch.md names."""
    torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
    torch.manual_seed(1)
    module, held = torch.nn.Linear(FEATURES, 2), list(pairs(table).values())[:6]
    plain = {"optimiser": {"kind": "fedavg", "lr": 1.0}, "balance": 0, "average": 0}
    result = dordis.train(
        module, held, epsilon=None, rounds=3, lr=0.3, epochs=2, clip=100.0, fidelity="ideal", output=tmp_path, **plain
    )
    weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    for _ in range(3):
        trained = []
        for x, y in held:
            torch.nn.utils.vector_to_parameters(weights.clone(), module.parameters())
            optimiser = torch.optim.SGD(module.parameters(), lr=0.3)
            for _ in range(2):
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(module(torch.tensor(x).float()), torch.tensor(y))
                loss.backward()
                optimiser.step()
            trained.append(torch.nn.utils.parameters_to_vector(module.parameters()).detach())
        weights = torch.stack(trained).mean(0)
    found = torch.nn.utils.parameters_to_vector(result.model.parameters()).detach()
    np.testing.assert_allclose(found, weights, atol=1e-5)
