"""Clients that take one step take it together, and each gets what it gets alone."""

import numpy as np
import pytest

from dordis.apps.learning import torch_one_step
from dordis.apps.learning.models import Work
from dordis.apps.learning.torch_one_step import fit_one_step, has_known_layers
from dordis.apps.learning.trainer import Training
from dordis.apps.learning.training_buffers import UpdateBuffers

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from dordis.apps.learning.networks import Inputs, cnn  # noqa: E402
from dordis.apps.learning.torch_model import TorchModel  # noqa: E402

STEP = Training(epochs=1, batch=0, lr=0.1)


def works(sizes=(3, 7, 1, 5), side=10, classes=4):
    rng = np.random.default_rng(3)
    samples = [(rng.random((n, side * side), dtype=np.float32), rng.integers(0, classes, n)) for n in sizes]
    return [Work(held, classes, (2, place)) for place, held in enumerate(samples)]


def network(dropout=(0.25, 0.5)):
    torch.manual_seed(1)
    return TorchModel(cnn(Inputs((10, 10), 4), dropout))


@pytest.mark.parametrize("how", [STEP, Training(epochs=1, batch=8, lr=0.1, balance=1.0, momentum=0.9, proximal=0.5)])
@pytest.mark.parametrize("group", [1, 8, 64])
@pytest.mark.parametrize("count", [1, 2])
def test_each_client_gets_the_step_that_it_takes_alone(monkeypatch, how, group, count):
    monkeypatch.setattr(torch_one_step, "GROUP", group)
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        model = network()
        start = model.initial(np.random.default_rng(0)).astype(np.float32)
        together = fit_one_step(model, start, works(), how)
        for update, work in zip(together, works(), strict=True):
            alone = model.fit(start, work, how)
            np.testing.assert_allclose(update, alone, rtol=1e-4, atol=2e-7)  # parameters are float32
        assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


def test_models_that_are_not_small_take_one_step_together(monkeypatch):
    model, taken = network(), []
    fit = fit_one_step
    monkeypatch.setattr("dordis.apps.learning.torch_model.fit_one_step", lambda *args: taken.append(1) or fit(*args))
    monkeypatch.setattr("dordis.apps.learning.training_buffers.LARGEST", 1)
    assert len(model.fit_together(model.initial(np.random.default_rng(0)), works(), STEP)) == len(works())
    assert taken


@pytest.mark.parametrize(
    "how",
    [
        Training(epochs=2, lr=0.1),
        Training(epochs=1, batch=6, lr=0.1),
        Training(epochs=1, lr=0.1, decay=0.1),
        Training(epochs=1, lr=0.1, method="adamw"),
    ],
)
def test_other_training_is_left_to_others(how):
    model = network()
    assert fit_one_step(model, model.initial(np.random.default_rng(0)), works(), how) is None


def test_a_client_without_samples_takes_no_step():
    model = network()
    assert fit_one_step(model, model.initial(np.random.default_rng(0)), works((3, 0)), STEP) is None


def test_layers_that_might_mix_samples_are_not_known():
    class Own(torch.nn.Linear):
        pass

    nn, twice = torch.nn, torch.nn.Linear(4, 4)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    for module in (
        nn.Linear(4, 2),
        tied,
        nn.Sequential(Own(4, 2)),
        nn.Sequential(twice, twice),
        nn.Sequential(nn.Linear(4, 2), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(1, 1, 3, padding="same")),
    ):
        assert not has_known_layers(module)
    assert has_known_layers(network()._module)


def test_a_buffer_is_given_out_again_only_when_nobody_has_it():
    buffers = UpdateBuffers()
    first = buffers.take(5, np.float32)
    view, address = first[1:3], first.ctypes.data
    del first
    assert buffers.take(5, np.float32).ctypes.data != address
    del view
    taken = [buffers.take(5, np.float32) for _ in range(3)]
    assert len({array.ctypes.data for array in taken}) == 3
    assert address in {array.ctypes.data for array in taken}
    assert buffers.take(6, np.float32).size == 6
