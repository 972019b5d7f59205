"""Exported models: the same predictions from raw rows, in torch and in ONNX, as the library's own."""

import json

import numpy as np
import pytest

import dordis
from dordis.apps.learning.trained_model import PREPROCESSING
from dordis.errors import InputError

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

TOWNS = ("here", "there")


def people(count=400):
    rng = np.random.default_rng(4)
    age, pulse = rng.uniform(15, 110, count), rng.uniform(40, 150, count)
    town = rng.choice(["here", "there", "elsewhere"], count)
    score = age / 50 + (town == "here")
    rows = {"age": age, "pulse": np.where(rng.random(count) < 0.2, np.nan, pulse), "town": town}
    return rows, score


def train(model, tmp_path, **label):
    rows, score = people()
    target = "ill" if "categories" in label else "cost"
    rows[target] = np.where(score > 1.6, "yes", "no") if target == "ill" else score
    table = dordis.Table(
        label=target,
        ranges={"age": (20, 100), "pulse": (50, 140)} | label.get("ranges", {}),
        categories={"town": TOWNS} | label.get("categories", {}),
        gaps={"pulse": "indicator", "town": "there"},
    )
    return dordis.train(model, rows, table=table, epsilon=None, rounds=3, output=tmp_path), rows


def raw_rows(rows, columns):
    """Return the rows as an exported program takes them, by the columns that it describes."""
    parts = []
    for column in columns:
        cells = rows[column["name"]]
        if "categories" in column:
            place = {value: i for i, value in enumerate(column["categories"])}
            cells = [np.nan if cell == "" else place.get(cell, column["other"]) for cell in cells]
        parts.append(np.asarray(cells, np.float32))
    return np.stack(parts, axis=1)


CLASSES = {"categories": {"ill": ("no", "yes")}}
NUMBERS = {"ranges": {"cost": (0, 4)}}


@pytest.mark.parametrize(
    ("model", "label"), [("softmax", CLASSES), ("mlp", CLASSES), ("linear", NUMBERS), ("own", NUMBERS)]
)
def test_torch_export_predicts_as_the_library_does(tmp_path, model, label):
    own = torch.nn.Linear(6, 1) if model == "own" else model
    result, rows = train(own, tmp_path, **label)
    rows["town"] = np.array(["here", "there", "away", ""] * 100)
    path, extra = result.export(tmp_path / "model.pt2"), {PREPROCESSING: ""}
    program = torch.export.load(path, extra_files=extra).module()
    described = json.loads(extra[PREPROCESSING])
    assert [column["name"] for column in described["columns"]] == ["age", "pulse", "town"]
    found = program(torch.from_numpy(raw_rows(rows, described["columns"]))).detach().numpy()
    expected = result.predict({name: rows[name] for name in ("age", "pulse", "town")})
    if label is CLASSES:
        assert np.array(described["output"]["scores of classes"])[found.argmax(axis=1)].tolist() == expected.tolist()
    else:
        np.testing.assert_allclose(found[:, 0], expected, rtol=1e-4, atol=1e-4)


def test_an_empty_cell_that_training_refuses_gives_no_answer(tmp_path):
    result, _ = train("linear", tmp_path, **NUMBERS)
    program = torch.export.load(result.export(tmp_path / "model.pt2")).module()
    assert torch.isnan(program(torch.tensor([[float("nan"), 80.0, 0.0]]))).all()


def test_onnx_predicts_as_the_library_does(tmp_path):
    pytest.importorskip("onnxscript", reason="the extra 'export' is not installed")
    onnx = pytest.importorskip("onnx", reason="the extra 'export' is not installed")
    from onnx.reference import ReferenceEvaluator

    result, rows = train("softmax", tmp_path, **CLASSES)
    stored = onnx.load(result.export(tmp_path / "model.onnx"))
    described = json.loads({item.key: item.value for item in stored.metadata_props}[PREPROCESSING])
    (found,) = ReferenceEvaluator(stored).run(None, {"rows": raw_rows(rows, described["columns"])})
    expected = result.predict({name: rows[name] for name in ("age", "pulse", "town")})
    assert np.array(["no", "yes"])[found.argmax(axis=1)].tolist() == expected.tolist()


def test_a_model_of_arrays_needs_an_example_unless_its_inputs_are_known(tmp_path):
    rng = np.random.default_rng(1)
    clients = [(rng.normal(size=(5, 1, 4, 4)).astype(np.float32), rng.integers(0, 2, 5)) for _ in range(20)]
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    result = dordis.train(module, clients, epsilon=None, rounds=1, output=tmp_path)
    with pytest.raises(InputError, match="needs an example"):
        result.export(tmp_path / "model.pt2")
    program = torch.export.load(result.export(tmp_path / "model.pt2", example=clients[0][0])).module()
    found = program(torch.from_numpy(clients[1][0])).argmax(dim=1)
    assert found.tolist() == result.predict(clients[1][0]).tolist()
    with pytest.raises(InputError, match="cannot write"):
        result.export(tmp_path / "absent" / "model.pt2", example=clients[0][0])


def test_an_example_that_does_not_fit_is_refused(tmp_path):
    held = [(np.arange(16).reshape(8, 2) % 6, np.arange(8) % 2)] * 4
    module = torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Flatten(), torch.nn.Linear(8, 2))
    result = dordis.train(module, held, epsilon=None, rounds=1, fidelity="ideal", output=tmp_path)
    result.export(tmp_path / "tokens.pt2", held[0][0])
    with pytest.raises(InputError, match=r"cannot export the model for inputs of shape \(8, 2\) and type float32"):
        result.export(tmp_path / "numbers.pt2", np.ones((8, 2)))
    with pytest.raises(InputError, match=r"one or more inputs, not of shape \(0, 2\)"):
        result.export(tmp_path / "none.pt2", np.ones((0, 2)))


def test_a_model_that_starts_from_a_private_one_says_that_both_count(tmp_path):
    rng = np.random.default_rng(1)
    clients = [(rng.normal(size=(5, 4)).astype(np.float32), rng.integers(0, 2, 5)) for _ in range(20)]
    options = {"rounds": 1, "output": tmp_path, "fidelity": "ideal", "accept_hopeless": True}
    first = dordis.train(torch.nn.Linear(4, 2), clients, epsilon=6, **options)
    with pytest.warns(UserWarning, match="clients in both runs spend the epsilon of both"):
        dordis.train(first.model, clients, epsilon=6, **options)
    public = dordis.train(torch.nn.Linear(4, 2), clients, epsilon=None, **options)
    assert not hasattr(public.model, "dordis_run")


def test_a_module_with_one_output_gives_two_scores_and_takes_numbers_of_32_bits(tmp_path):
    result, rows = train(torch.nn.Linear(6, 1).double(), tmp_path, **CLASSES)
    extra = {PREPROCESSING: ""}
    program = torch.export.load(result.export(tmp_path / "model.pt2"), extra_files=extra).module()
    described = json.loads(extra[PREPROCESSING])
    found = program(torch.from_numpy(raw_rows(rows, described["columns"]))).detach().numpy()
    assert found.shape == (400, 2)
    assert (
        np.array(described["output"]["scores of classes"])[found.argmax(axis=1)].tolist()
        == result.predict({name: rows[name] for name in ("age", "pulse", "town")}).tolist()
    )


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_images_are_an_example_for_models_of_ours(model, tmp_path):
    rng = np.random.default_rng(1)
    clients = [(rng.normal(size=(5, 8, 8)).astype(np.float32), np.arange(5) % 2) for _ in range(4)]
    result = dordis.train(model, clients, epsilon=None, rounds=1, fidelity="ideal", output=tmp_path)
    x = clients[0][0]
    program = torch.export.load(result.export(tmp_path / "model.pt2", example=x)).module()
    assert program(torch.from_numpy(x.reshape(5, 64))).argmax(dim=1).tolist() == result.predict(x).tolist()
