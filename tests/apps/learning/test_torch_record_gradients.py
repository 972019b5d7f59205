"""Gradients of single records of torch modules."""

import os
from pathlib import Path

import numpy as np
import pytest

import dordis
from dordis.apps.learning.record_gradients import RecordLearner, make_record_gradients, slice_width
from dordis.apps.learning.torch_model import TorchModel
from dordis.errors import InputError
from dordis.kernels.reals import LEAST_LENGTH
from dordis.rounds.records import check_independence, sum_places
from tests.apps.learning.test_record_gradients import ALL, ROUND, Failing, attempt, summed

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.torch

CASES = int(os.environ.get("DORDIS_HOSTILE_CASES", "260"))
"""Hostile pairs of neighbouring data that go through a module; set the variable to 100000 for the full number."""
PAIRS = 6 * 2**5


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)
    )


class Amplified(torch.nn.Module):
    """A layer that makes a gradient of the rounding error of a product: the server chooses the model."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.inner, self.outer, self.gain = nn.Linear(24, 24), nn.Linear(24, 3), gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x)
        error = (h.double() - (x.double() @ self.inner.weight.double().T + self.inner.bias.double())).float()
        return self.outer(torch.sin(self.gain * error))


def records(rng: np.random.Generator, count: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, 3, count)


def test_gradients_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    module = small_cnn()
    model = TorchModel(module)
    x, y = records(np.random.default_rng(0), 5, 1, 8, 8)
    parameters = model.initial(np.random.default_rng(0))
    rows = make_record_gradients(model).rows(parameters, x, y)
    for i in range(5):
        module.zero_grad()
        nn.functional.cross_entropy(module(torch.tensor(x[i : i + 1])), torch.tensor(y[i : i + 1])).backward()
        expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()]).numpy()
        np.testing.assert_allclose(rows[i], expected, rtol=1e-4, atol=1e-6)


class Remembering(nn.Module):
    """A module that stores a value of the records in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return self.inner(x)


def test_a_buffer_that_changes_with_the_records_is_refused() -> None:
    x, y = records(np.random.default_rng(0), 5, 4)
    model = TorchModel(Remembering())
    with pytest.raises(InputError, match="training changes the buffer 'calls'"):
        make_record_gradients(model).rows(model.initial(np.random.default_rng(0)), x, y)


def test_the_gradient_of_a_frozen_parameter_is_in_no_row() -> None:
    x, y = records(np.random.default_rng(0), 5, 1, 8, 8)
    module, whole = small_cnn(), TorchModel(small_cnn())
    whole._module.load_state_dict(module.state_dict())
    module[0].requires_grad_(False)
    model = TorchModel(module)
    start = whole.initial(np.random.default_rng(0))
    expected = make_record_gradients(whole).rows(start, x, y)
    found = make_record_gradients(model).rows(start[40:], x, y)
    np.testing.assert_allclose(found, expected[:, 40:], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (small_cnn(), (1, 8, 8)),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), (1, 8, 8)),
        (nn.Linear(30, 3), (30,)),
        (Amplified(1e7), (24,)),
    ],
)
def test_slices_stay_wide_because_bits_depend_on_neither_neighbours_nor_places(
    module: nn.Module, shape: tuple[int, ...]
) -> None:
    model = TorchModel(module)
    client = RecordLearner(model, records(np.random.default_rng(0), 150, *shape))
    parameters = model.initial(np.random.default_rng(0))
    assert check_independence(client, ROUND, parameters, model.dim)
    summed(client, parameters)
    assert client.width == slice_width(model.dim)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_record_changes_the_sum_by_more_than_the_clip_through_a_model_that_amplifies_rounding() -> None:
    rng = np.random.default_rng(3)
    torch.manual_seed(3)
    for draw in range(-(-CASES // PAIRS)):
        if draw % 10 == 0:
            model = TorchModel(Amplified(10.0 ** rng.integers(5, 9)))
            x, y = records(rng, 13, 24)
            x[rng.integers(13), rng.integers(24)] = rng.choice([0.0, np.nan, np.inf, 1e38])
            client = Failing(model, (x, y))
        client.bad = frozenset({draw % 13}) if draw % 50 == 7 else frozenset()
        parameters = model.initial(rng) * rng.uniform(0.5, 30)
        for changed in changes(client, parameters, rng.permutation(13)):
            assert changed <= LEAST_LENGTH**2


def changes(client: Failing, parameters: np.ndarray, order: np.ndarray) -> list[int]:
    """Return the squared change of the sum by one record, for all neighbours with the last 7 records and any others."""
    sums = []
    for chosen in range(2**6):
        others = [order[place] for place in range(6) if chosen >> place & 1]
        places = np.sort(np.concatenate([order[6:], others]).astype(np.int64))
        sums.append(sum_places(client, ROUND, parameters, parameters.size, ALL, attempt, places).total)
    pairs = [(chosen, chosen ^ 1 << place) for chosen in range(2**6) for place in range(6) if chosen >> place & 1]
    return [int(changed @ changed) for with_it, without in pairs for changed in (sums[with_it] - sums[without],)]


def test_batch_statistics_are_refused() -> None:
    model = TorchModel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)))
    with pytest.raises(InputError, match="normalises over the records of a batch"):
        make_record_gradients(model)


class Still(nn.Sequential):
    """A module whose batch normalisation keeps the statistics that it has."""

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self[1].eval()
        return self


def test_statistics_that_do_not_change_mix_no_records() -> None:
    torch.manual_seed(0)
    model = TorchModel(Still(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    x, y = records(np.random.default_rng(0), 5, 4)
    parameters = model.initial(np.random.default_rng(0))
    rows = make_record_gradients(model).rows(parameters, x, y).copy()
    for i in range(5):
        expected = model.gradient(parameters, x[i : i + 1], y[i : i + 1], np.zeros(3))
        np.testing.assert_allclose(rows[i], expected, rtol=1e-4, atol=1e-6)
    statistics = TorchModel(Still(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)))
    with pytest.raises(InputError, match="normalises over the records of a batch"):
        make_record_gradients(statistics)


def test_dropout_is_off() -> None:
    model = TorchModel(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3)))
    x, y = records(np.random.default_rng(0), 3, 4)
    parameters = model.initial(np.random.default_rng(0))
    first = make_record_gradients(model).rows(parameters, x, y).copy()
    assert np.array_equal(first, make_record_gradients(model).rows(parameters, x, y))


def test_a_record_that_is_not_finite_adds_nothing() -> None:
    model = TorchModel(nn.Linear(4, 3))
    x, y = records(np.random.default_rng(0), 20, 4)
    broken = x.copy()
    broken[7] = np.nan
    keep = np.arange(20) != 7
    parameters = model.initial(np.random.default_rng(0))
    assert np.array_equal(
        summed(RecordLearner(model, (broken, y)), parameters),
        summed(RecordLearner(model, (x[keep], y[keep])), parameters),
    )


class Branching(nn.Module):
    """A module with a branch that depends on its inputs, which vmap cannot run."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x / 100 if x.abs().max().item() > 100 else x)


def test_a_run_whose_gradients_all_fail_stops_instead_of_releasing_noise(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [records(rng, 8, 4) for _ in range(3)]
    settings = {"epsilon": 8, "unit": "record", "records": 8, "rounds": 1, "accept_hopeless": True, "output": tmp_path}
    with pytest.raises(RuntimeError, match="vmap") as caught:
        dordis.train(Branching(), clients, **settings)
    assert "repair the application or its data" in caught.value.__notes__[-1]
