"""Warnings while a training runs."""

import warnings

import numpy as np

import dordis
from dordis.apps.learning.progress import Progress, worse_than_constant

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
