"""An app in the shape of Flower's quickstart for PyTorch becomes private by two lines, and its log says how private."""

import logging
import re

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
pytestmark = [pytest.mark.flower, pytest.mark.torch]

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from dordis.errors import HopelessPlan
from dordis.integrations.flower import DordisGrid, dordis_mod
from dordis.records import run_records
from tests.integrations.flower.apps import MemoryGrid

NODES, FEW, IMAGES = 24, 10, 20
RUN_CONFIG = {
    "num-server-rounds": 2,
    "fraction-evaluate": 0.5,
    "local-epochs": 1,
    "learning-rate": 0.1,
    "batch-size": 10,
}
"""The settings of the quickstart: none of them is of dordis."""


class Net(torch.nn.Module):
    """A small CNN for images of 3 x 32 x 32, of the size that the quickstart has: 62,006 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 6, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(6, 16, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        )  # fmt: skip
        self.classes = torch.nn.Sequential(
            torch.nn.Linear(400, 120),
            torch.nn.ReLU(),
            torch.nn.Linear(120, 84),
            torch.nn.ReLU(),
            torch.nn.Linear(84, 10),
        )

    def forward(self, images):
        return self.classes(self.features(images))


def load_data(partition: int, batch_size: int):
    """Return loaders of the training and of the test images of a node."""
    generator = torch.Generator().manual_seed(partition)
    images, labels = torch.randn(2 * IMAGES, 3, 32, 32, generator=generator), torch.arange(2 * IMAGES) % 10
    halves = (slice(0, IMAGES), slice(IMAGES, None))
    return [
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images[half], labels[half]), batch_size=batch_size)
        for half in halves
    ]


app = ClientApp(mods=[dordis_mod])  # the first line


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the images of this node."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader, _ = load_data(context.node_config["partition-id"], context.run_config["batch-size"])
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"]), []
    for _ in range(context.run_config["local-epochs"]):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    metrics = MetricRecord({"train_loss": sum(losses) / len(losses), "num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    raise AssertionError("a node was asked to evaluate")


def serve(grid, context: Context) -> None:
    """The main function of a ServerApp."""
    grid = DordisGrid(grid, privacy=context.run_config)  # the second line
    config = context.run_config
    result = FedAvg(fraction_evaluate=config["fraction-evaluate"]).start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
    Net().load_state_dict(result.arrays.to_torch_state_dict())  # the quickstart saves it


def run(caplog, nodes: int = NODES, **more) -> list[str]:
    """Run the app; return the lines of the private run in the log of the app."""
    config = {**RUN_CONFIG, **more}
    with caplog.at_level(logging.INFO, "flwr"):
        serve(MemoryGrid([app] * nodes, run_config=lambda place: config), Context(1, 0, {}, RecordDict(), config))
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("private run")]


def test_two_lines_make_the_quickstart_private(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    started, ended = run(caplog)
    assert started.startswith(
        "private run: 24 nodes, 24 a round, 2 rounds, epsilon 6, delta 1e-05; signal-to-noise ratio"
    )
    assert re.search(r"\(nodes needed: about [\d,]+ for 1 and [\d,]+ for 10\)$", started), started
    said = re.fullmatch(
        r"private run ended after 2 rounds: epsilon (\S+) at delta 1e-05 \(\S+ of 6 spent\); records in (.+)", ended
    )
    assert said, ended
    stored = run_records.load_run(next((tmp_path / "runs" / "flower").iterdir()))
    assert said[2] == str(stored.path.resolve())
    assert float(said[1]) == pytest.approx(stored.result.epsilon, rel=1e-2)
    assert stored.result.stopped == "rounds"


@pytest.mark.slow
def test_records_go_where_the_run_config_says(tmp_path, caplog):
    ended = run(caplog, output=str(tmp_path / "elsewhere"))[-1]
    assert f"records in {tmp_path / 'elsewhere'}" in ended


@pytest.mark.slow
def test_the_rounds_of_dordis_come_before_those_of_the_strategy(tmp_path, caplog):
    started = run(caplog, **{"output": str(tmp_path), "federation.rounds": 4})[0]
    assert "24 a round, 4 rounds" in started


def test_a_hopeless_plan_is_refused_in_the_log_before_anything_is_spent(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HopelessPlan, match="clients"):
        run(caplog, FEW)
    (refused,) = [record for record in caplog.records if "refused" in record.getMessage()]
    assert refused.levelno == logging.ERROR
    assert re.search(r"the noise drowns everything \(nodes needed: about [\d,]+ for 1 ", refused.getMessage())
    assert not (tmp_path / "runs").exists()
    started = run(caplog, FEW, **{"accept-hopeless": True})[0]
    assert "the noise drowns everything" in started
