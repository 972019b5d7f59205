"""The ServerApp: an ordinary strategy; the grid makes its rounds private."""

from logging import INFO

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from dordis.integrations.flower import DordisGrid
from private_digits.task import accuracy, start

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model, and evaluate it on public data after every round."""
    grid = DordisGrid(grid, privacy=context.run_config)  # without dordis: leave this line out
    strategy = FedAvg(fraction_evaluate=0.0)
    rounds = context.run_config["federation.rounds"]
    strategy.start(grid, ArrayRecord([start()]), num_rounds=rounds, evaluate_fn=evaluate)
    log(INFO, "dordis report %s writes a page on this run", grid.path)


def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the model on the test data."""
    (weights,) = arrays.to_numpy_ndarrays()
    return MetricRecord({"accuracy": accuracy(weights)})
