"""Torch modules behind the same interface as the models in numpy."""

import numpy as np
import pytest

from dordis.apps.learning import Client, Server
from dordis.apps.learning.models import Softmax
from dordis.apps.learning.torch_model import TorchModel
from dordis.apps.learning.trainer import Training, train
from dordis.errors import InputError
from dordis.rounds.app import RoundInfo, Task

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
pytestmark = pytest.mark.torch
RNG = np.random.default_rng(6)
X, Y = RNG.normal(size=(12, 4)), RNG.integers(0, 3, 12)


@pytest.fixture(autouse=True)
def _same_modules_every_time():
    torch.manual_seed(1)


def linear():
    return TorchModel(torch.nn.Linear(4, 3).double())


def as_numpy(parameters):
    """Order the parameters of a linear module, (classes, features) and bias, as softmax regression has them."""
    return np.concatenate([parameters[:12].reshape(3, 4).T.ravel(), parameters[12:]])


def test_a_linear_module_is_softmax_regression():
    model, reference = linear(), Softmax(4, 3)
    parameters, offset = RNG.normal(size=model.dim), np.array([0.5, 0.0, -1.0])
    assert model.dim == reference.dim
    np.testing.assert_allclose(model.scores(parameters, X), reference.scores(as_numpy(parameters), X))
    slope = model.gradient(parameters, X, Y, offset)
    np.testing.assert_allclose(as_numpy(slope), reference.gradient(as_numpy(parameters), X, Y, offset))


def test_a_module_begins_with_its_own_parameters_and_keeps_none():
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    model = TorchModel(module)
    initial = model.initial(RNG)
    direct = module(torch.tensor(X, dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(model.scores(initial, X), direct, atol=1e-6)
    update = train(model, initial, X, Y, 3, Training(epochs=5, lr=0.2), (1,))
    assert model.evaluate(initial + update, X, Y)["loss"] < model.evaluate(initial, X, Y)["loss"]
    np.testing.assert_array_equal(model.initial(RNG), initial)


def test_modules_that_would_leak_or_learn_nothing_are_refused():
    for module, reason in (
        (torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)), "buffers"),
        (torch.nn.ReLU(), "no parameters"),
        ("linear", "not of str"),
    ):
        with pytest.raises(InputError, match=reason):
            TorchModel(module)


def convolution(features, classes, channels=4):
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 8, 8)),
        torch.nn.Conv2d(1, channels, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(36 * channels, classes),
    )


def test_a_configuration_names_a_module_and_the_seed_decides_how_it_begins():
    options = {"model": f"{__name__}:convolution", "options": {"channels": 2}}
    before = torch.random.get_rng_state()
    first, other = (Server.of(Task(options, 10, seed)).model() for seed in (1, 2))
    np.testing.assert_array_equal(first, Server.of(Task(options, 10, 1)).model())
    assert not np.array_equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())
    update = Client.of(Task(options, 10, 1), 0).prepare_data(RoundInfo(1, 0), first)
    assert update.shape == first.shape
    assert update.any()
