"""Models with their preprocessing: predictions from raw rows, saved and loaded."""

import numpy as np
import pytest

import dordis
from dordis.apps.learning.models import Softmax
from dordis.errors import InputError

RNG = np.random.default_rng(5)
AGES = RNG.uniform(20, 80, 400)
CITIES = RNG.choice(["Bonn", "Ulm"], 400)
ROWS = {"age": AGES, "city": CITIES, "ill": np.where(AGES + 10 * (CITIES == "Ulm") > 55, "yes", "no")}
TABLE = dordis.Table(label="ill", ranges={"age": (0, 100)}, categories={"city": ("Bonn", "Ulm"), "ill": ("no", "yes")})
NEW = {"age": [25, 75], "city": ["Bonn", "Ulm"]}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return dordis.train("softmax", ROWS, table=TABLE, epsilon=None, output=tmp_path_factory.mktemp("runs"))


def test_raw_rows_are_predicted_and_the_saved_model_predicts_the_same(result, tmp_path):
    assert result.predict(NEW).tolist() == ["no", "yes"]
    again = dordis.load(result.save(tmp_path / "ill.dordis"))
    assert again.columns == ("age", "city")
    np.testing.assert_array_equal(again.predict(ROWS), result.predict(ROWS))
    np.testing.assert_array_equal(dordis.load(result.path).predict(ROWS), result.predict(ROWS))
    assert again.encoder.table.ranges == {"age": (0, 100)}


def test_no_rows_have_no_predictions(result):
    assert result.predict({"age": [], "city": []}).tolist() == []


def test_an_error_of_a_model_of_ones_own_is_the_cause(tmp_path):
    class Own(Softmax):
        def scores(self, parameters, x):
            if len(x) == 7:
                raise TypeError("a defect of this model")
            return super().scores(parameters, x)

    clients = [(RNG.normal(size=(5, 4)), np.arange(5) % 2) for _ in range(3)]
    done = dordis.train(Own(4, 2), clients, epsilon=None, rounds=1, fidelity="ideal", output=tmp_path)
    with pytest.raises(InputError, match="a defect of this model") as caught:
        done.predict(np.zeros((7, 4)))
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_table_whose_values_all_miss_a_category_is_refused_before_training(tmp_path):
    upper = ROWS | {"city": [name.upper() for name in CITIES]}
    with pytest.raises(InputError, match="no value of 'city' is in the public range or among the public categories"):
        dordis.train("softmax", upper, table=TABLE, epsilon=None, output=tmp_path)


def test_a_description_that_is_no_table_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"table must be a dordis.Table\(label=\.\.\., \.\.\.\), not a dict"):
        dordis.train("softmax", ROWS, table={"label": "ill"}, epsilon=None, output=tmp_path)


def test_rows_that_do_not_fit_are_refused(result, tmp_path):
    with pytest.raises(InputError, match="no column 'city'"):
        result.predict({"age": [3]})
    with pytest.raises(InputError, match="empty cells in the column 'age'"):
        result.predict({"age": [None], "city": ["Ulm"]})
    (tmp_path / "junk").write_text("junk")
    with pytest.raises(InputError, match="is not a model that dordis saved"):
        dordis.load(tmp_path / "junk")
    with pytest.raises(InputError, match=r"there is no run and no saved model at .*missing\.dordis"):
        dordis.load(tmp_path / "missing.dordis")
    with pytest.raises(InputError, match=r"must be lists or arrays of the same length, such as \[25\] for one row"):
        result.predict({"age": 25, "city": "Ulm"})
    with pytest.raises(InputError, match="cannot write"):
        result.save(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "labels"), [("linear", ("y",)), ("linear", ("y", "z")), ("mlp", ("y", "z"))])
def test_numbers_are_predicted_in_their_own_units(model, labels, tmp_path):
    x = RNG.uniform(0, 10, 300)
    rows = {"x": x, "y": 100 + 20 * x, "z": 5 - x}
    ranges = {"x": (0, 10), "y": (0, 400), "z": (-10, 10)}
    table = dordis.Table(label=labels if len(labels) > 1 else "y", features=("x",), ranges=ranges)
    more = {} if model == "linear" else {"lr": 0.5, "optimiser": {"kind": "fedavg", "lr": 0.3, "momentum": 0.5}}
    done = dordis.train(model, rows, table=table, test=rows, epsilon=None, rounds=60, output=tmp_path, **more)
    assert done.metrics["r2"] > 0.9
    assert ("r2_z" in done.metrics) == (len(labels) > 1)
    said = done.predict({"x": [2.0, 8.0]})
    first = said if len(labels) == 1 else said[:, 0]
    assert said.shape == ((2,) if len(labels) == 1 else (2, 2))
    np.testing.assert_allclose(first, [140, 260], atol=25)
    again = dordis.load(done.save(tmp_path / "saved"))
    np.testing.assert_array_equal(again.predict({"x": [2.0]}), done.predict({"x": [2.0]}))


def test_a_torch_module_comes_back_as_a_module_and_needs_its_class_to_be_loaded(tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
    module = torch.nn.Linear(4, 2)
    done = dordis.train(module, ROWS, table=TABLE, epsilon=None, rounds=5, output=tmp_path)
    assert isinstance(done.model, torch.nn.Linear)
    saved = done.save(tmp_path / "saved")
    with pytest.raises(InputError, match="Linear, is not stored: pass it"):
        dordis.load(saved).predict(NEW)
    again = dordis.load(saved, model=torch.nn.Linear(4, 2))
    np.testing.assert_array_equal(again.predict(ROWS), done.predict(ROWS))
    assert torch.equal(again.module.weight, done.model.weight)


def images(clients=4):
    """Return pairs of small images and labels, one pair for each client."""
    return [(RNG.standard_normal((20, 1, 8, 8)).astype(np.float32), np.arange(20) % 3) for _ in range(clients)]


@pytest.mark.parametrize("model", ["softmax", "mlp", "cnn"])
def test_a_model_given_by_name_is_loaded_without_passing_it_again(model, tmp_path):
    if model == "cnn":
        pytest.importorskip("torch", reason="needs the extra 'torch'")
    clients = images()
    done = dordis.train(model, clients, epsilon=None, rounds=1, lr=0.01, fidelity="ideal", output=tmp_path)
    (x, _), *_ = clients
    assert done.predict(x).shape == (20,)
    for place in (done.save(tmp_path / "saved"), done.path):
        again = dordis.load(place)
        np.testing.assert_array_equal(again.predict(x), done.predict(x))
        np.testing.assert_array_equal(again.predict(x.reshape(20, 64)), done.predict(x))


@pytest.mark.parametrize("fidelity", ["ideal", "full"])
def test_training_that_diverges_is_no_dropout(fidelity, tmp_path):
    """Without noise nothing is clipped, so an update may be too large for the sum's integers."""
    with pytest.raises(InputError, match="lower learning rate"):
        dordis.train("mlp", images(), epsilon=None, rounds=2, lr=1e4, fidelity=fidelity, output=tmp_path)
