"""One round of Flower's SecAgg+ with all parties in this process; tried with flwr 1.41.

Flower pays for nothing but its client mod and its server workflow: the wire is not counted, which is in its favour.
Both work on floats, so that quantisation is counted, which is not.  Both share secrets in threads of their own, so
that seconds are those of the whole process.
"""

import logging
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from time import process_time
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.compat.common import recorddict_compat
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.rounds import Costs, Setting

VALUE = 0.25
"""Every coordinate of every client, and so of the average."""


class MeteredGrid:
    """Deliver messages to Flower's client mod and count each client's CPU seconds and bytes."""

    def __init__(self, setting: Setting) -> None:
        self._lost = setting.lost
        self._contexts = {u: _context(u) for u in range(1, setting.clients + 1)}
        update = ndarrays_to_parameters([np.full(setting.dim, VALUE, np.float32)])
        self._result = FitRes(Status(Code.OK, ""), update, num_examples=1, metrics={})
        self.seconds: dict[int, float] = defaultdict(float)
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()
        self.elsewhere = 0.0
        """CPU seconds that are not the server's: those of clients and of the wire."""

    def send_and_receive(self, messages: Iterable[Any], timeout: float | None = None) -> list[Any]:
        """Return the replies, none from those who drop."""
        start = process_time()
        replies = [reply for message in messages if (reply := self._deliver(message)) is not None]
        self.elsewhere += process_time() - start
        return replies

    def _deliver(self, message: Any) -> Any | None:
        u = message.metadata.dst_node_id
        if u in self._lost and message.content[RECORD_KEY_CONFIGS][Key.STAGE] == Stage.COLLECT_MASKED_VECTORS:
            return None
        content, size = _over_the_wire(message.content)
        self.received[u] += size
        received = Message(content, metadata=message.metadata)
        start = process_time()
        reply = secaggplus_mod(received, self._contexts[u], self._train)
        self.seconds[u] += process_time() - start
        content, size = _over_the_wire(reply.content)
        self.sent[u] += size
        return Message(content, metadata=reply.metadata)

    def _train(self, message: Any, context: Any) -> Any:
        return Message(recorddict_compat.fitres_to_recorddict(self._result, keep_input=True), reply_to=message)


class OneRound:
    """A strategy that asks everyone once and keeps the average."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self._proxies = [SimpleNamespace(node_id=u, cid=str(u)) for u in nodes]
        self.survivors: list[int] = []
        self.average = np.zeros(0, np.float32)

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[tuple[Any, Any]]:
        """Choose everyone."""
        return [(proxy, FitIns(parameters, {})) for proxy in self._proxies]

    def aggregate_fit(self, server_round: int, results: list[tuple[Any, Any]], failures: Any) -> tuple[None, Any]:
        """Keep what the workflow found."""
        self.survivors = [proxy.node_id for proxy, _ in results]
        (self.average,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


def play(setting: Setting) -> Costs:
    """Run one round on the complete graph with Flower's default ring and return what it costs."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    strategy, grid = OneRound(range(1, setting.clients + 1)), MeteredGrid(setting)
    context = LegacyContext(
        _context(0), strategy=strategy, client_manager=SimpleNamespace(num_available=lambda: setting.clients)
    )
    model = ndarrays_to_parameters([np.zeros(setting.dim, np.float32)])
    context.state[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    context.state[MAIN_PARAMS_RECORD] = recorddict_compat.parameters_to_arrayrecord(model, keep_input=True)
    workflow = SecAggPlusWorkflow(setting.clients, setting.threshold, max_weight=1)
    start = process_time()
    workflow(grid, context)
    server_s = process_time() - start - grid.elsewhere
    assert len(strategy.survivors) == setting.clients - setting.dropped
    assert np.allclose(strategy.average, VALUE, atol=1e-4)
    seconds = [grid.seconds[u] for u in strategy.survivors]
    return Costs(
        client_min_s=min(seconds),
        client_s=statistics.median(seconds),
        client_max_s=max(seconds),
        server_s=server_s,
        upload_mb=max(grid.sent.values()) / 1e6,
        traffic_mb=statistics.mean(grid.sent[u] + grid.received[u] for u in strategy.survivors) / 1e6,
    )


def _context(node: int) -> Any:
    return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})


def _over_the_wire(content: Any) -> tuple[Any, int]:
    """Return what arrives, and its bytes."""
    sent = recorddict_to_proto(content)
    return recorddict_from_proto(sent), sent.ByteSize()
