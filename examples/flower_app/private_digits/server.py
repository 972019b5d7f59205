"""The ServerApp: an ordinary strategy; the grid makes its rounds private."""

from logging import INFO
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from dordis.identity.registry import Registry
from dordis.integrations.flower import DordisGrid
from private_digits.task import accuracy, start

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model, and evaluate it on public data after every round."""
    file = context.run_config["registry"]  # of the keys of all nodes, unless they are simulated
    registry = Registry.load(Path(file)) if file else None
    grid = DordisGrid(grid, privacy=context.run_config, registry=registry)  # without dordis: leave these lines out
    strategy = FedAvg(fraction_evaluate=0.0)
    rounds = context.run_config["federation.rounds"]
    strategy.start(grid, ArrayRecord([start()]), num_rounds=rounds, evaluate_fn=evaluate)
    log(INFO, "dordis report %s writes a page on this run", grid.path)


def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the model on the test data."""
    (weights,) = arrays.to_numpy_ndarrays()
    return MetricRecord({"accuracy": accuracy(weights)})
