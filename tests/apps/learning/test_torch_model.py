"""Torch modules behind the same interface as the models in numpy."""

import numpy as np
import pytest

from dordis.apps.learning import Client, Server
from dordis.apps.learning.models import Softmax, Work
from dordis.apps.learning.torch_model import TorchModel
from dordis.apps.learning.trainer import Training, train
from dordis.apps.learning.training_buffers import TrainingBuffers
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


@pytest.mark.parametrize("flattened", [False, True])
def test_one_output_is_the_log_odds_of_the_second_class(flattened):
    """The reference is torch's own binary_cross_entropy_with_logits, and softmax regression on scores 0 and s."""
    layers = [torch.nn.Linear(4, 1).double(), *([torch.nn.Flatten(0)] if flattened else [])]
    module, y = torch.nn.Sequential(*layers), (Y > 0).astype(np.int64)
    model = TorchModel(module)
    model.check_outputs(X[:2], 2)
    parameters = RNG.normal(size=model.dim)
    odds = X @ parameters[:4] + parameters[4]
    np.testing.assert_allclose(model.scores(parameters, X), np.stack([0 * odds, odds], axis=1))
    expected = torch.nn.functional.binary_cross_entropy_with_logits(torch.tensor(odds), torch.tensor(y).double())
    told = model.evaluate(parameters, X, y)
    assert told == {"accuracy": ((odds > 0) == y).mean(), "loss": pytest.approx(float(expected))}
    slope = model.gradient(parameters, X, y, np.zeros(2))
    errors = (1 / (1 + np.exp(-odds)) - y) / y.size
    np.testing.assert_allclose(slope, [*(errors @ X), errors.sum()])
    works = [Work((X, y), 2, (1, place)) for place in range(2)]
    together = model.fit_together(model.initial(RNG), works, Training(epochs=2, lr=0.1))
    for work, update in zip(works, together, strict=True):
        np.testing.assert_allclose(update, model.fit(model.initial(RNG), work, Training(epochs=2, lr=0.1)))


class Pair(torch.nn.Module):
    """A module that returns more than scores."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.inner(x), x


@pytest.mark.parametrize(
    ("module", "classes", "words"),
    [
        (torch.nn.Linear(4, 1), 3, r"shape \(2, 1\) for 2 inputs: classification needs \(2, 3\)$"),
        (torch.nn.Linear(4, 3), 2, r"needs \(2, 2\) or \(2, 1\)"),
        (torch.nn.Linear(5, 2), 2, r"cannot take inputs of shape \(4,\)"),
        (Pair(), 3, "gives tuple, not scores"),
    ],
)
def test_outputs_of_another_shape_are_refused(module, classes, words):
    with pytest.raises(InputError, match=words):
        TorchModel(module).check_outputs(X[:2], classes)


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
        (torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)), "the layer '1' keeps running statistics"),
        (torch.nn.ReLU(), "no parameters"),
        ("linear", "not str"),
        (torch.nn.Linear, "not the class Linear: call it"),
        (lambda: torch.nn.Linear(4, 3), "not the function <lambda>: call it"),
        (torch.nn.LazyLinear(3), "'weight' of the module has no values yet"),
        (torch.nn.Linear(4, 3, device="meta"), "'weight' of the module has no values yet"),
        (torch.nn.Linear(4, 3).bfloat16(), "number type bfloat16: call module.float"),
        (torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3).double()), "float32, float64"),
        (torch.nn.Linear(4, 3).requires_grad_(False), "all parameters of the module are frozen"),
    ):
        with pytest.raises(InputError, match=reason):
            TorchModel(module)


def test_copies_that_are_made_during_an_evaluation_are_whole():
    """A server may evaluate while clients of its process train: an evaluation puts other tensors into the module."""

    class Copying(torch.nn.Linear):
        def forward(self, x):
            if self.copies is not None:
                self.copies.append((TrainingBuffers(model), model.trained(start), model.fixed()))
            return super().forward(x)

    module = Copying(4, 3)
    module.copies = None
    module.register_buffer("public", torch.ones(2))
    model = TorchModel(module)
    start = model.initial(RNG)
    module.copies = []
    model.scores(start, X)
    ((buffers, trained, fixed),) = module.copies
    module.copies = None
    buffers._module.copies = None
    work, how = Work((X, Y), 3, (1,)), Training(epochs=2, lr=0.3)
    np.testing.assert_array_equal(buffers.fit(start, work, how), model.fit(start, work, how))
    np.testing.assert_allclose(trained.bias.detach(), start[12:], rtol=1e-6)
    assert fixed.keys() == {"public"}


class Scaled(torch.nn.Module):
    """A module with a parameter that is a single number, and one without numbers."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3).double()
        self.scale, self.none = (torch.nn.Parameter(torch.zeros(shape).double()) for shape in ((), (0,)))

    def forward(self, x):
        return self.inner(x) * self.scale.exp()


def test_a_parameter_may_be_a_single_number():
    model = TorchModel(Scaled())
    start, works = model.initial(RNG), [Work((X, Y), 3, (1, place)) for place in range(2)]
    how = Training(epochs=3, lr=0.3)
    update = model.fit(start, works[0], how)
    np.testing.assert_allclose(model.fit_together(start, works, how)[0], update)
    after = model.trained(start + update)
    assert after.scale.shape == ()
    assert after.scale.item() != 0
    np.testing.assert_allclose(model.scores(start + update, X), after(torch.tensor(X)).detach())


class Counting(torch.nn.Module):
    """A module with a constant buffer, and one that counts calls in training after the first `quiet` calls."""

    def __init__(self, quiet, in_place=True):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("calls", torch.zeros(()))
        self.quiet, self.in_place = quiet, in_place

    def forward(self, x):
        self.quiet -= self.training
        if self.quiet < 0 and self.in_place:
            self.calls.add_(1)
        elif self.quiet < 0:
            self.calls = self.calls + 1
        return self.inner(x * self.scale)


@pytest.mark.parametrize("in_place", [True, False])
def test_training_that_changes_a_buffer_is_refused(in_place):
    with pytest.raises(InputError, match="training changes the buffer 'calls'"):
        TorchModel(Counting(0, in_place)).check_outputs(X[:2], 3)
    works = [Work((X, Y), 3, (1, place)) for place in range(2)]
    model = TorchModel(Counting(1, in_place))
    model.check_outputs(X[:2], 3)
    with pytest.raises(InputError, match="training changes the buffer 'calls'"):
        model.fit(model.initial(RNG), works[0], Training(epochs=5))
    model = TorchModel(Counting(1, in_place))
    if in_place:  # torch.func refuses it, so that the clients train one by one
        assert model.fit_together(model.initial(RNG), works, Training(epochs=5)) is None
        return
    with pytest.raises(InputError, match="training changes the buffer 'calls'"):
        model.fit_together(model.initial(RNG), works, Training(epochs=5))


class Padded(torch.nn.Module):
    """A module for tokens of which 0 is padding: a sequence of padding only cannot be packed."""

    def __init__(self):
        super().__init__()
        self.embed, self.gru = torch.nn.Embedding(9, 4), torch.nn.GRU(4, 4, batch_first=True)
        self.top = torch.nn.Linear(4, 3)

    def forward(self, x):
        lengths = (x != 0).sum(dim=1)
        packed = torch.nn.utils.rnn.pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        return self.top(self.gru(packed)[1][0])


def test_a_module_that_cannot_take_sequences_of_padding_takes_tokens():
    tokens = np.array([[3, 1, 0], [2, 0, 0]])
    model = TorchModel(Padded())
    model.check_outputs(tokens, 3)
    assert model.scores(model.initial(RNG), tokens).shape == (2, 3)


class Picky(torch.nn.Embedding):
    """A module that takes neither only zeros nor only ones."""

    def forward(self, x):
        if len(x.unique()) == 1:
            raise ValueError("these tokens are all alike")
        return super().forward(x).sum(dim=1)


def test_a_refusal_of_tokens_quotes_errors_and_no_scores():
    with pytest.raises(InputError, match="cannot take inputs of shape") as caught:
        TorchModel(Picky(9, 3)).check_outputs(np.array([[3, 1, 0], [2, 0, 0]]), 3)
    assert "as whole numbers" not in str(caught.value)


class Strict(torch.nn.Module):
    """A module with a constant buffer, which refuses inputs in training if `strict` is set."""

    def __init__(self, strict):
        super().__init__()
        self.inner, self.strict = torch.nn.Linear(4, 3), strict
        self.register_buffer("unused", torch.tensor([float("nan"), 1.0]))

    def forward(self, x):
        if self.training and self.strict:
            raise ValueError("more than one value is needed")
        return self.inner(x)


def test_a_buffer_may_hold_nan():
    model = TorchModel(Strict(strict=False))
    model.check_outputs(X[:2], 3)
    model.fit(model.initial(RNG), Work((X, Y), 3, (1, 1)), Training(epochs=2))


def test_a_module_that_fails_in_training_only_is_refused_before():
    with pytest.raises(InputError, match="in training the module cannot take 2 inputs: more than one value is needed"):
        TorchModel(Strict(strict=True)).check_outputs(X[:2], 3)


def test_a_layer_that_stays_in_evaluation_mode_may_have_statistics():
    class Still(torch.nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    TorchModel(Still(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))).check_outputs(X[:2], 3)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("epochs", [1, 3])
def test_frozen_parameters_are_in_no_update(small, epochs, monkeypatch):
    """The reference is a module that consists of the last layer only, on the outputs of the first."""
    monkeypatch.setattr("dordis.apps.learning.training_buffers.LARGEST", 10**6 if small else 0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)).double()
    module[0].requires_grad_(False)
    model, head = TorchModel(module), TorchModel(torch.nn.Sequential(module[1]))
    inner = module[0](torch.tensor(X)).detach().numpy()
    assert (model.dim, model.shapes) == (head.dim, {"1.weight": (3, 5), "1.bias": (3,)})
    start, how = model.initial(RNG), Training(epochs=epochs, lr=0.3)
    works, reference = ([Work((x, Y), 3, (1, place)) for place in range(3)] for x in (X, inner))
    together = model.fit_together(start, works, how) or [model.fit(start, work, how) for work in works]
    for update, work, other in zip(together, works, reference, strict=True):
        np.testing.assert_allclose(update, head.fit(start, other, how))
        np.testing.assert_allclose(model.fit(start, work, how), update)
    after = model.trained(start + together[0])
    assert torch.equal(after[0].weight, module[0].weight)
    np.testing.assert_allclose(after[1].bias.detach(), (start + together[0])[15:])


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
    first, other = (Server.from_task(Task(options, 10, seed)).model() for seed in (1, 2))
    np.testing.assert_array_equal(first, Server.from_task(Task(options, 10, 1)).model())
    assert not np.array_equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())
    update = Client.from_task(Task(options, 10, 1), 0).prepare_data(RoundInfo(1, 0), first)
    assert update.shape == first.shape
    assert update.any()
