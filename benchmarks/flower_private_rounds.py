"""Private rounds of dordis and of Flower's own SecAgg+ in one simulation of Flower, in turn; tried with flwr 1.41.

Both sides have the same nodes, processes and updates, and the complete graph.  Flower's side is its workflow and its
mod as they are, without noise, on its default ring; ours has XNoise, and checks for a malicious server.
"""

import logging
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

# Read when flwr and ray are imported: nothing is reported to anyone, and ray does not print a tip.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.compat.common import recorddict_compat
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.flower_secagg import OneRound
from benchmarks.flower_simulation import OF_A_CLIENT, RAY
from dordis.integrations.flower import DordisGrid, dordis_mod
from dordis.integrations.flower.messages import RECORD
from dordis.records.run_records import load_run

WARM_UP = 1
"""First rounds of each side that are not counted: kernels are loaded, keys exchanged."""
NORM = 0.5
"""Of every update: within the clip bound of our side."""
DEVIATIONS = 6
"""How many standard deviations of the noise the mean of all coordinates may be off."""


class TwoApps(ClientApp):  # type: ignore[misc]
    """A node that serves both sides: each with the app that a user of it would write."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self._ours, self._theirs = private_app(dim), flower_app(dim)

    def __call__(self, message: Message, context: Context) -> Message:
        """Hand a message to the app that it is for."""
        app = self._ours if RECORD in message.content.config_records else self._theirs
        return app(message, context)


def private_app(dim: int) -> ClientApp:
    """Return an app of the Message API, with our mod."""
    app = ClientApp(mods=[dordis_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        (model,) = message.content["arrays"].to_numpy_ndarrays()
        content = {"arrays": ArrayRecord([model + step(dim)]), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return app


def flower_app(dim: int) -> ClientApp:
    """Return an app with Flower's mod, which knows only clients of the older interface."""

    class Trainee(NumPyClient):  # type: ignore[misc]
        def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
            return [parameters[0] + step(dim)], 1, {}

    return ClientApp(client_fn=lambda context: Trainee().to_client(), mods=[secaggplus_mod])


def step(dim: int) -> np.float32:
    """Return what every client adds to every coordinate."""
    return np.float32(NORM / dim**0.5)


def seconds(clients: int, dim: int, rounds: int) -> dict[str, list[float]]:
    """Run rounds of both sides in turn, and return the seconds of each."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    taken: dict[str, list[float]] = {"dordis": [], "flower": []}
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = {"federation.rounds": WARM_UP + rounds, "federation.clients": clients, "output": folder}
            private = DordisGrid(grid, settings)
            sides = {"dordis": ours(private, clients, dim), "flower": theirs(grid, context, clients, dim)}
            for _ in range(WARM_UP + rounds):
                for name, play in sides.items():
                    start = time.perf_counter()
                    mean = play()
                    taken[name].append(time.perf_counter() - start)
                    noise = 0.0 if name == "flower" else (load_run(private.path).manifest.plan.sigma or 0.0) / clients
                    assert abs(mean * dim**0.5 - NORM) < DEVIATIONS * noise + 0.01 * NORM

    settings = {"client_resources": OF_A_CLIENT, "init_args": dict(RAY)}
    run_simulation(server, TwoApps(dim), num_supernodes=clients, backend_config=settings)
    return {name: times[WARM_UP:] for name, times in taken.items()}


def ours(grid: DordisGrid, clients: int, dim: int) -> Callable[[], float]:
    """Return a round of FedAvg over our grid."""
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=clients)
    model = ArrayRecord([np.zeros(dim, np.float32)])

    def play() -> float:
        messages = strategy.configure_train(1, model, ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(1, grid.send_and_receive(messages, timeout=600))
        return float(arrays.to_numpy_ndarrays()[0].mean())

    return play


def theirs(grid: Grid, context: Context, clients: int, dim: int) -> Callable[[], float]:
    """Return a round of Flower's SecAgg+ workflow on the complete graph."""
    model = ndarrays_to_parameters([np.zeros(dim, np.float32)])

    def play() -> float:
        nodes = list(grid.get_node_ids())
        strategy = OneRound(nodes)
        legacy = LegacyContext(context, strategy=strategy, client_manager=_Everybody(clients))
        legacy.state[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
        legacy.state[MAIN_PARAMS_RECORD] = recorddict_compat.parameters_to_arrayrecord(model, keep_input=True)
        SecAggPlusWorkflow(clients, clients // 2 + 1, max_weight=1)(grid, legacy)
        return float(strategy.average.mean())

    return play


class _Everybody:
    """A manager that is only asked how many clients there are."""

    def __init__(self, clients: int) -> None:
        self._clients = clients

    def num_available(self) -> int:
        return self._clients
