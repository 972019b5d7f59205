"""Gradients are those of the loss, by finite differences."""

import msgspec
import numpy as np
import pytest

from dordis.apps.learning.models import Mlp, Softmax, Work, softmax
from dordis.apps.learning.settings import Settings
from dordis.config import reading
from dordis.errors import InputError


def loss(model, parameters, x, y, offset):
    scores = model.scores(parameters, x) + offset
    return np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(y.size), y])


@pytest.mark.parametrize("model", [Softmax(5, 3), Mlp(5, 3, hidden=4)], ids=["softmax", "mlp"])
@pytest.mark.parametrize("offset", [np.zeros(3), np.array([0.5, -2.0, 0.0])], ids=["plain", "offset"])
def test_the_gradient_is_the_slope_of_the_loss(model, offset):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(7, 5)), rng.integers(0, 3, 7)
    parameters = model.initial(rng) + rng.normal(0, 0.3, model.dim)
    step = 1e-6
    slopes = [
        (loss(model, parameters + step * e, x, y, offset) - loss(model, parameters - step * e, x, y, offset)) / 2 / step
        for e in np.eye(model.dim)
    ]
    np.testing.assert_allclose(model.gradient(parameters, x, y, offset), slopes, atol=1e-8)


def test_the_parameters_count_both_layers():
    assert (Softmax(64, 10).dim, Mlp(64, 10, hidden=32).dim) == (650, 65 * 32 + 33 * 10)


def test_probabilities_add_up_whatever_the_scores():
    found = softmax(np.array([[1e4, 0.0, -1e4], [3.0, 3.0, 3.0]]))
    np.testing.assert_allclose(found, [[1, 0, 0], [1 / 3] * 3])


def test_an_evaluation_is_accuracy_and_loss():
    model, x, y = Softmax(2, 2), np.eye(2)[[0, 1, 1]], np.array([0, 1, 0])
    assert model.evaluate(np.zeros(6), x, y) == {"accuracy": pytest.approx(2 / 3), "loss": pytest.approx(np.log(2))}
    certain = np.array([5e3, 0, 0, 5e3, 0, 0])
    found = model.evaluate(certain, x, y)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert np.isfinite(found["loss"])


def test_hidden_units_begin_different_and_follow_the_seed():
    model = Mlp(6, 3, hidden=4)
    first, again, other = (model.initial(np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.unique(first[:24]).size == 24
    assert not Softmax(6, 3).initial(np.random.default_rng(1)).any()


def test_a_hidden_layer_without_units_is_refused():
    with pytest.raises(InputError):
        Mlp(6, 3, hidden=0)


def test_inputs_of_single_precision_have_the_same_scores():
    rng = np.random.default_rng(4)
    model, x = Softmax(40, 3), rng.normal(size=(50, 40)).astype(np.float32)
    parameters = rng.normal(size=model.dim)
    np.testing.assert_allclose(model.scores(parameters, x), model.scores(parameters, x.astype(np.float64)), atol=1e-4)


@pytest.mark.parametrize("preset", ["mnist-writers", "cifar10-features", "cifar10-features-large"])
def test_presets_with_features_take_one_step_that_is_longer_than_the_clip_bound(preset):
    config = reading.read_config(preset=preset)
    rng, model = np.random.default_rng(5), Softmax(729, 10)
    x, y = rng.normal(size=(20, 729)), rng.integers(0, 10, 20)
    x *= 5 / np.linalg.norm(x, axis=1, keepdims=True)  # as public features are
    start = rng.normal(size=model.dim)
    step = model.fit(start, Work((x, y), 10, (0,)), msgspec.convert(config.app.options, Settings))
    slope = model.gradient(start, x, y, np.zeros(10))
    np.testing.assert_allclose(step / np.linalg.norm(step), -slope / np.linalg.norm(slope), atol=1e-12)
    assert np.linalg.norm(step) > config.privacy.clip
