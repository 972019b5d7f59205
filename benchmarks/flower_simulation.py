"""Rounds of federated learning in Flower's simulation engine, by each of its two interfaces; tried with flwr 1.41.

Clients and server are those of `dordis.apps.learning`, so that both sides train and evaluate by the same code on the
same samples.  Every client has the same weight, and models travel as 32-bit numbers, as with us.
"""

import logging
import os
import time
from dataclasses import dataclass, field
from typing import Any

# Read when flwr and ray are imported: nothing is reported to anyone, and ray does not print a tip.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

import numpy as np
import ray
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation, start_simulation

from benchmarks.timing import family_time
from dordis.apps.learning import Client, Server
from dordis.privacy.scaling import Floats
from dordis.rounds.app import RoundInfo, Task

OF_A_CLIENT = {"num_cpus": 1, "num_gpus": 0.0}
"""Resources: ray starts as many processes as there are processors, and each runs one client at a time."""
RAY = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "logging_level": "ERROR", "log_to_driver": False}
_ALIKE = {"num-examples": 1}


@dataclass
class Progress:
    """The server's model, evaluated at the start and after every round, and when that was, in seconds of two clocks."""

    server: Server
    times: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    accuracy: float = 0.0

    def note(self, parameters: Floats) -> None:
        """Evaluate the model of a round."""
        self.server.restore({"parameters": parameters})
        self.accuracy = self.server.evaluate()["accuracy"]
        self.times.append(time.perf_counter())
        self.spent.append(family_time())


def by_apps(task: Task, per_round: int, rounds: int) -> Progress:
    """Run a ClientApp and a ServerApp: the interface of today, which looks for messages ten times a second."""
    _silence()
    client, server, progress = ClientApp(), ServerApp(), Progress(Server.from_task(task))

    @client.train()
    def train(message: Message, context: Context) -> Message:
        (start,) = message.content["arrays"].to_numpy_ndarrays()
        place, number = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
        update = Client.from_task(task, place).prepare_data(RoundInfo(number, number - 1), start)
        arrays = ArrayRecord([(start + update).astype(np.float32)])
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(_ALIKE)}), reply_to=message)

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        progress.note(arrays.to_numpy_ndarrays()[0])

    @server.main()
    def main(grid: Any, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=per_round / task.population, fraction_evaluate=0.0, min_available_nodes=task.population
        )
        initial = ArrayRecord([progress.server.model().astype(np.float32)])
        strategy.start(grid, initial, num_rounds=rounds, evaluate_fn=evaluate)

    settings = {"client_resources": OF_A_CLIENT, "init_args": dict(RAY)}
    run_simulation(server, client, num_supernodes=task.population, backend_config=settings)
    return progress


def by_start(task: Task, per_round: int, rounds: int) -> Progress:
    """Call `start_simulation`: the older interface, which waits for ray and so for no more than is needed."""
    _silence()
    progress = Progress(Server.from_task(task))

    class Trainee(NumPyClient):  # type: ignore[misc]
        def __init__(self, place: int) -> None:
            self._client = Client.from_task(task, place)

        def fit(self, parameters: list[Floats], config: dict[str, Any]) -> tuple[list[Floats], int, dict[str, Any]]:
            (start,) = parameters
            number = int(config["number"])
            update = self._client.prepare_data(RoundInfo(number, number - 1), start)
            return [(start + update).astype(np.float32)], 1, {}

    def evaluate(number: int, parameters: list[Floats], config: dict[str, Any]) -> None:
        progress.note(parameters[0])

    strategy = LegacyFedAvg(
        fraction_fit=per_round / task.population,
        fraction_evaluate=0.0,
        min_available_clients=task.population,
        initial_parameters=ndarrays_to_parameters([progress.server.model().astype(np.float32)]),
        evaluate_fn=evaluate,
        on_fit_config_fn=lambda number: {"number": number},
    )
    try:
        start_simulation(
            client_fn=lambda context: Trainee(int(context.node_config["partition-id"])).to_client(),
            num_clients=task.population,
            client_resources=dict(OF_A_CLIENT),
            config=ServerConfig(num_rounds=rounds),
            strategy=strategy,
            ray_init_args=RAY,
        )
    finally:
        ray.shutdown()
    return progress


def _silence() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
