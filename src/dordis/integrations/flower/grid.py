"""The grid of a ServerApp whose train messages come to a private mean, with ledger and records as in `dordis run`."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Error, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from dordis.errors import BudgetExceeded, InputError, RoundFailed
from dordis.federation.config import Protocol, RunConfig
from dordis.federation.coordinator import Finished
from dordis.federation.job import prepare
from dordis.federation.registry import Registry
from dordis.federation.run import Run
from dordis.integrations.flower.arrays import Layout, model_of
from dordis.integrations.flower.binding import check_same_records
from dordis.integrations.flower.exchange import Assignment, Post
from dordis.integrations.flower.home import FlowerHome, FlowerModel, enrol, weighted_mean
from dordis.integrations.flower.settings import config_of, settings_of, written
from dordis.protocol import ClientId

LOG = logging.getLogger("dordis.flower")
PATIENCE = 60.0
"""Seconds that a stage after the training waits for nodes that do not answer."""
WEIGHT = "num-examples"
"""The metric by which Flower's strategies weight replies."""


class DordisGrid(Grid):
    """A grid that sums what train messages bring by secure aggregation with distributed differential privacy.

    `privacy` are the settings of `dordis run` as a dictionary, nested or with dots in its keys, such as
    `context.run_config`; the number of rounds must be among them.  `registry` are the keys of all clients, if they are
    fixed beforehand; otherwise the nodes that are connected at the first round are the clients.

    Every client has the weight that its owner gives it, 1 if none is given.  Metrics of clients are dropped, and nodes
    are not asked to evaluate: what they measure would not be private.
    """

    def __init__(
        self,
        grid: Grid,
        privacy: RunConfig | Mapping[str, Any],
        *,
        registry: Registry | None = None,
        weight: str = WEIGHT,
        patience: float = PATIENCE,
    ) -> None:
        self._grid, self._settings, self._registry = grid, settings_of(privacy), registry
        self._weight, self._patience = weight, patience
        self._private: PrivateRun | None = None

    @property
    def path(self) -> Path:
        """Return the directory of the run: its records, its ledger, its report once it is made."""
        if self._private is None:
            raise InputError("the run begins with the first train messages")
        return self._private.run.records.path

    def send_and_receive(
        self, messages: Iterable[FlowerMessage], *, timeout: float | None = None
    ) -> Iterable[FlowerMessage]:
        """Run a private round; the reply of every survivor holds the private mean, that of the others an error."""
        asked = list(messages)
        kinds = {message.metadata.message_type for message in asked}
        if kinds == {"evaluate"}:
            LOG.info("nodes are not asked to evaluate, which would not be private: evaluate on the server")
        elif kinds - {"train"}:
            raise InputError(f"a private round is made of train messages, not of {', '.join(sorted(kinds))}")
        elif asked:
            return self._round(asked, timeout)
        return []

    def _round(self, asked: list[FlowerMessage], timeout: float | None) -> list[FlowerMessage]:
        check_same_records(asked)
        name, model = model_of(asked[0].content)
        if self._private is None:
            self._private = self._begin(Layout.of(model), len(asked), timeout)
        private = self._private
        nodes = {node: u for u, node in private.home.nodes.items()}
        messages = {nodes[m.metadata.dst_node_id]: m for m in asked if m.metadata.dst_node_id in nodes}
        model, training = private.app.layout.typed(model), private.home.training
        training.content = RecordDict({**asked[0].content, name: model})
        training.clients, training.timeout = tuple(messages), timeout
        finished, arrays = private.round(model)
        replies = []
        clients = [ClientId(u) for u in finished.record.clients]
        for u in (*clients, *(messages.keys() - set(clients))):
            message = messages.get(u) or FlowerMessage(RecordDict(), private.home.nodes[u], "train")
            replies.append(self._reply(u, message, finished, name, arrays))
        return replies

    def _begin(self, layout: Layout, per_round: int, timeout: float | None) -> "PrivateRun":
        """Enrol the nodes, plan the noise and begin the records of the run."""
        post, training = Post(self._grid), Assignment()
        mode = self._settings.get("protocol", {}).get("mode", Protocol().mode)
        enrolment = enrol(post, self._connected(), self._registry, mode, timeout)
        config = config_of(self._settings, len(enrolment.registry), per_round)
        app = FlowerModel(layout, enrolment.environment, training)
        home = FlowerHome(post, enrolment, prepare(config, app), self._patience, training)
        return PrivateRun(Run.start(home.job, home, Path(config.output), written(config)), home, app)

    def _connected(self) -> list[int]:
        """Return the nodes, once there are as many as the settings say."""
        wanted = self._settings["federation"].get("clients", 2)
        while len(nodes := list(self._grid.get_node_ids())) < wanted:
            LOG.info("waiting for nodes: %d of %d", len(nodes), wanted)
            time.sleep(1)
        return sorted(nodes)

    def _reply(
        self, u: ClientId, message: FlowerMessage, finished: Finished, name: str, arrays: ArrayRecord
    ) -> FlowerMessage:
        if all(u in output.survivors for output in finished.result.outputs):
            content = RecordDict({name: arrays, "metrics": MetricRecord({self._weight: 1.0})})
            return FlowerMessage(content, reply_to=message)
        stage = next((at for at, gone in finished.record.dropped.items() if u in gone), "the invitation")
        error = Error(code=ErrorCode.NODE_UNAVAILABLE, reason=f"client {u} was lost at {stage}")
        return FlowerMessage(error, reply_to=message)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that can be asked: from the first round on, those who are enrolled."""
        if self._private is None:
            return self._connected()
        enrolled = set(self._private.home.nodes.values())
        return [node for node in self._grid.get_node_ids() if node in enrolled]

    def set_run(self, run: Any) -> None:
        """Set the run of the grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Return the run of the grid."""
        return self._grid.run

    def create_message(self, *arguments: Any, **options: Any) -> FlowerMessage:
        """Make a message."""
        return self._grid.create_message(*arguments, **options)

    def push_messages(self, messages: Iterable[FlowerMessage]) -> Iterable[str]:
        """Refuse: a private round has several stages."""
        raise InputError("a private round has several stages: use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[FlowerMessage]:
        """Refuse: a private round has several stages."""
        raise InputError("a private round has several stages: use send_and_receive")


class PrivateRun:
    """A run under way, of which the strategy asks for one round after the other."""

    def __init__(self, run: Run, home: FlowerHome, app: FlowerModel) -> None:
        self.run, self.home, self.app = run, home, app
        for warning in run.job.design.warnings:
            LOG.warning("%s", warning)

    @cached_property
    def _rounds(self) -> Iterator[Finished]:
        return self.run.rounds()

    def round(self, model: ArrayRecord) -> tuple[Finished, ArrayRecord]:
        """Run the next round from a model; return what happened, and the model with the private mean added."""
        self.app.vector = self.app.layout.vector(model)
        finished = self._next()
        if finished is None:
            raise InputError(f"the noise was planned for {self.run.done} rounds, which are over: set federation.rounds")
        record = finished.record
        spent = "" if record.epsilon is None else f", epsilon {record.epsilon:.3g} so far"
        LOG.info("round %d: %d of %d clients%s", record.number, min(record.survivors), len(record.clients), spent)
        if record.number == self.run.job.config.federation.rounds:
            self.run.close("rounds")
        return finished, self.app.layout.record(model, self.app.vector + weighted_mean(finished, self.home.weights))

    def _next(self) -> Finished | None:
        """Run a round; whatever ends the run is written down."""
        try:
            return next(self._rounds, None)
        except BudgetExceeded:
            self.run.close("budget")
            raise
        except RoundFailed:
            self.run.close("failed")
            raise
