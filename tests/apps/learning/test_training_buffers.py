"""Training with torch: the same steps as in numpy, one thread for small models, many clients in one pass."""

from threading import Barrier

import numpy as np
import pytest

from dordis.apps.learning import Client, Server, training_buffers
from dordis.apps.learning.models import Softmax, Work
from dordis.apps.learning.torch_model import TorchModel
from dordis.apps.learning.trainer import Training, batches, find_device, seed_number, seed_torch, use_threads
from dordis.apps.learning.training_buffers import LARGEST
from dordis.errors import InputError
from dordis.rounds.app import RoundInfo, Task
from tests.apps.aggregates import summed

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
pytestmark = pytest.mark.torch

HOW = [
    Training(epochs=3, lr=0.3, batch=4, momentum=0.5, proximal=0.1, balance=0.5),
    Training(epochs=2, lr=0.05, batch=3, method="adamw", momentum=0.9, decay=0.1),
    Training(epochs=4, lr=0.5, decay=0.01, limit=5),
]


def works(sizes=(3, 7, 12, 12, 1), features=4, classes=3):
    rng = np.random.default_rng(8)
    samples = [(rng.normal(size=(n, features)).astype(np.float32), rng.integers(0, classes, n)) for n in sizes]
    return [Work(held, classes, (1, place)) for place, held in enumerate(samples)]


def linear(features=4, classes=3):
    torch.manual_seed(2)
    return TorchModel(torch.nn.Linear(features, classes).double())


def as_numpy(parameters):
    """Order the parameters of a linear module as softmax regression has them."""
    return np.concatenate([parameters[:12].reshape(3, 4).T.ravel(), parameters[12:]])


@pytest.mark.parametrize("how", HOW)
def test_torch_takes_the_steps_that_numpy_takes(how):
    model, reference = linear(), Softmax(4, 3)
    start = model.initial(np.random.default_rng(0))
    for work in works():
        np.testing.assert_allclose(
            as_numpy(model.fit(start, work, how)), reference.fit(as_numpy(start), work, how), atol=1e-9
        )


@pytest.mark.parametrize("how", HOW)
def test_many_clients_in_one_pass_get_what_each_gets_alone(how):
    model, given = linear(), works()
    start = model.initial(np.random.default_rng(0))
    together = model.fit_together(start, given, how)
    assert len(together) == len(given)
    for work, update in zip(given, together, strict=True):
        np.testing.assert_allclose(update, model.fit(start, work, how), atol=1e-6)


def test_clients_that_cannot_be_batched_train_one_by_one():
    class Looks(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2.0 if float(x.sum()) > 0 else 1.0)

    model = TorchModel(Looks(4, 3))
    start = model.initial(np.random.default_rng(0))
    assert model.fit_together(start, works(), HOW[0]) is None
    assert model.fit_together(start, works((0, 3)), HOW[0]) is None


@pytest.fixture
def no_passes(monkeypatch):
    """Have every model be too large for one batched pass, and two threads."""
    monkeypatch.setattr(training_buffers, "LARGEST", 0)
    with use_threads(2):
        yield


@pytest.mark.usefixtures("no_passes")
@pytest.mark.parametrize("how", HOW)
def test_clients_in_threads_get_bit_for_bit_what_each_gets_alone(how):
    torch.manual_seed(3)
    layers = torch.nn.Linear(4, 50), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Dropout(0.0)
    model, given = TorchModel(torch.nn.Sequential(*layers, torch.nn.Linear(50, 3))), works((3, 7, 0, 12, 12, 1, 9))
    start, drawn = model.initial(np.random.default_rng(0)), torch.default_generator.get_state()
    together = model.fit_together(start, given, how)
    assert torch.equal(torch.default_generator.get_state(), drawn)
    for work, update in zip(given, together, strict=True):
        np.testing.assert_array_equal(update, model.fit(start, work, how))


def test_a_desk_drops_what_the_layer_of_torch_drops():
    module = torch.nn.Sequential(torch.nn.Dropout(0.25), torch.nn.Linear(4, 3))
    model, work, how = TorchModel(module), works()[3], Training(epochs=1, lr=0.5, balance=0.0)
    start = model.initial(np.random.default_rng(0))
    (batch,) = batches(12, how, work.seed)
    x, y = (torch.from_numpy(part[batch]) for part in work.samples)
    with seed_torch(seed_number(work.seed)):
        torch.nn.functional.cross_entropy(module.train()(x), y).backward()
    slopes = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])
    np.testing.assert_allclose(model.fit(start, work, how), -0.5 * slopes.numpy(), atol=1e-6)


@pytest.mark.usefixtures("no_passes")
def test_two_clients_train_at_the_same_time_each_on_one_thread_of_torch():
    meeting, seen = Barrier(2), set()

    class Meets(torch.nn.Linear):
        def forward(self, x):
            meeting.wait(timeout=60)  # whoever trains alone waits in vain
            seen.add(torch.get_num_threads())
            return super().forward(x)

    model = TorchModel(Meets(4, 3))
    assert len(model.fit_together(model.initial(np.random.default_rng(0)), works((5,) * 4), HOW[2])) == 4
    assert seen == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("no_passes")
def test_clients_whose_layers_draw_from_the_generator_of_all_threads_train_one_by_one():
    class Draws(torch.nn.Linear):
        def forward(self, x):
            return super().forward(torch.nn.functional.dropout(x))

    model = TorchModel(Draws(4, 3))
    start, drawn = model.initial(np.random.default_rng(0)), torch.default_generator.get_state()
    assert model.fit_together(start, works(), HOW[0]) is None
    assert model.draws_in_turn
    assert torch.equal(torch.default_generator.get_state(), drawn)


@pytest.mark.parametrize("largest", [0, LARGEST])
def test_training_that_fails_is_told_by_the_client_whose_it_is(monkeypatch, largest):
    monkeypatch.setattr(training_buffers, "LARGEST", largest)
    task = Task({"model": f"{__name__}:net", "lr": 0.5}, 4)
    clients, info, start = (
        [Client.from_task(task, place) for place in range(4)],
        RoundInfo(1, 0),
        Server.from_task(task).model(),
    )
    clients[2]._samples = (np.full_like(clients[2]._samples[0], np.inf), clients[2]._samples[1])
    with use_threads(2):
        clients[0].expect(info, clients)
        for place in (0, 1, 3):
            assert np.isfinite(clients[place].prepare_data(info, start)).all()
        with pytest.raises(InputError, match="diverged"):
            clients[2].prepare_data(info, start)


def net(features, classes):
    return torch.nn.Sequential(torch.nn.Linear(features, 5), torch.nn.Tanh(), torch.nn.Linear(5, classes))


def test_peers_of_a_round_train_at_once_and_each_update_is_given_once(monkeypatch):
    task = Task({"model": f"{__name__}:net", "lr": 0.5}, 6)
    server, clients = Server.from_task(task), [Client.from_task(task, place) for place in range(6)]
    info, start = RoundInfo(1, 0), server.model()
    alone = [client.prepare_data(info, start) for client in clients]
    monkeypatch.setattr(TorchModel, "fit", None)  # whoever trains alone now fails
    clients[0].expect(info, clients)
    together = [client.prepare_data(info, start) for client in clients]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    with pytest.raises(TypeError):
        clients[0].prepare_data(info, start)
    with pytest.raises(TypeError):
        clients[1].prepare_data(RoundInfo(2, 1), start)


def test_a_small_model_takes_one_thread_and_leaves_the_others_as_they_were():
    seen = []

    class Counts(torch.nn.Linear):
        def forward(self, x):
            seen.append(torch.get_num_threads())
            return super().forward(x)

    model = TorchModel(Counts(28, 2))
    assert model.dim == 58
    before = torch.get_num_threads()
    with use_threads(2):
        start = model.initial(np.random.default_rng(0))
        model.fit(start, works(features=28, classes=2)[2], HOW[0])
        model.evaluate(start, *works(features=28, classes=2)[2].samples)
        assert torch.get_num_threads() == 2
    assert set(seen) == {1}
    assert torch.get_num_threads() == before


def dropping(features, classes):
    return torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(features, classes))


def test_dropout_follows_the_seed_of_client_and_round():
    task = Task({"model": f"{__name__}:dropping"}, 6)
    client, start = Client.from_task(task, 1), Server.from_task(task).model()
    first, again, other = (client.prepare_data(RoundInfo(1, index), start) for index in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_device_that_is_not_there_is_refused():
    assert find_device("auto").type in {"cpu", "cuda", "mps"}
    with pytest.raises(InputError, match="there is no device 'quantum'"):
        find_device("quantum")


def test_training_that_diverges_is_refused():
    model = linear()
    start = model.initial(np.random.default_rng(0))
    for train in (model.fit, lambda start, work, how: model.fit_together(start, [work, work], how)):
        with pytest.raises(InputError, match="diverged"):
            train(start, works()[2], Training(epochs=200, lr=1e4, proximal=1.0))


def regressor(features, classes):
    return torch.nn.Linear(features, 1)


def wide(features, classes):
    return torch.nn.Linear(features, classes + 1)


def narrow(features, classes):
    return torch.nn.Linear(features - 1, classes)


@pytest.mark.slow
def test_numbers_are_learnt_by_least_squares(tmp_path):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(400, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.25
    np.savez(tmp_path / "line.npz", x_train=x, y_train=y, x_test=x, y_test=y, keys=np.arange(400) % 8)
    for model in ("linear", "mlp", f"{__name__}:regressor"):
        options = {"data": str(tmp_path / "line.npz"), "target": "regression", "model": model, "lr": 0.1, "epochs": 20,
                   "optimiser": {"kind": "fedavg", "lr": 1.0}, "average": 0.0}  # fmt: skip
        task = Task(options, 8)
        server = Server.from_task(task)
        before = server.evaluate()["rmse"]
        for index in range(6):
            updates = [
                Client.from_task(task, place).prepare_data(RoundInfo(1, index), server.model()) for place in range(8)
            ]
            server.use_output(RoundInfo(1, index), summed(updates))
        assert server.evaluate()["rmse"] < 0.4 * before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": f"{__name__}:wide"}, r"scores of shape \(2, 11\).*needs \(2, 10\)"),
        ({"model": f"{__name__}:narrow"}, r"cannot take inputs of shape \(64,\)"),
        ({"model": "vgg19"}, "32 by 32 pixels or more"),
        ({"model": "albert"}, "needs data of words"),
        ({"model": "linear"}, "not for classification: use softmax"),
        ({"model": "cnn", "options": {"dropout": [1.0, 0.0]}}, "rates of dropout"),
        ({"model": "cnn", "options": {"depth": 3}}, "depth"),
        ({"model": "resnet18", "options": {"width": 20}}, "multiple of 32"),
        ({"device": "quantum", "model": f"{__name__}:net"}, "no device"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        Server.from_task(Task(options, 10))
