"""A grid for a ServerApp that answers train messages with a private mean, and writes ledger and records of the run.

The settings are those of `dordis run`, from a dictionary such as the `run_config` of a Flower app.
"""

import difflib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
from flwr.app import ArrayRecord, Error, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from dordis.config.reading import explain_error, merge_settings
from dordis.config.schema import App, Federation, Protocol, RunConfig
from dordis.errors import BudgetExceeded, Diverged, HopelessPlan, InputError, RoundFailed
from dordis.identity.registry import Registry
from dordis.integrations.flower.exchange import GridTransport, TrainMessages
from dordis.integrations.flower.messages import Layout, check_same_records, find_model
from dordis.integrations.flower.population import Enrolment, FlowerModel, FlowerPopulation, enrol, weighted_mean
from dordis.owner.policy import RECORD as RECORD_UNIT
from dordis.privacy.advice import ENOUGH, EQUAL, NOTHING, check_prospects, clients_for_ratio, describe_ratio, run_ratio
from dordis.privacy.scaling import Floats
from dordis.protocol import ClientId
from dordis.protocols import summing_protocol
from dordis.protocols.limits import LARGEST_WEIGHT
from dordis.protocols.summing import SummingProtocol
from dordis.runs.coordinator import FinishedRound
from dordis.runs.job import Job, check_record_column, prepare
from dordis.runs.run import Run
from dordis.selection.colluders import OPEN

NAME = "flower"
_HERE = "dordis.integrations.flower"
_FEDERATION = "federation"
FLOWER_ROUNDS = "num-server-rounds"
"""Key of the run config that sets the number of rounds in Flower's own apps."""


def read_settings(given: RunConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of dordis by section; other settings, such as those of the app, are ignored.

    If `federation.rounds` is not set, the number of rounds is Flower's `num-server-rounds`.

    >>> read_settings({"privacy.epsilon": 3.0, "federation": {"rounds": 5}, "learning-rate": 0.1})
    {'federation': {'rounds': 5}, 'privacy': {'epsilon': 3.0}}
    """
    plain = msgspec.to_builtins(given) if isinstance(given, RunConfig) else given
    nested: dict[str, Any] = {}
    for key, value in plain.items():
        first, *rest = key.split(".")
        if first in RunConfig.__struct_fields__ and first != "app":
            for name in reversed(rest):
                value = {name: value}
            nested = merge_settings(nested, {first: value})
    if "rounds" not in nested.get(_FEDERATION, {}):
        if FLOWER_ROUNDS not in plain:
            raise InputError(
                f"the noise depends on the number of rounds: set {FLOWER_ROUNDS} or federation.rounds in the run config"
            )
        nested = merge_settings(nested, {_FEDERATION: {"rounds": plain[FLOWER_ROUNDS]}})
    return dict(sorted(nested.items()))


def find_misspelt(given: RunConfig | Mapping[str, Any]) -> list[str]:
    """Return warnings about keys that are ignored and look like settings of dordis.

    >>> find_misspelt({"privcy.epsilon": 3.0, "learning-rate": 0.1, "federation.rounds": 5})
    ["'privcy.epsilon' is ignored: is 'privacy.epsilon' meant?"]
    """
    found: list[str] = []
    for key in given if isinstance(given, Mapping) else ():
        first, dot, rest = key.partition(".")
        near = difflib.get_close_matches(first, RunConfig.__struct_fields__, 1, 0.85)
        if near and first not in RunConfig.__struct_fields__:
            found.append(f"'{key}' is ignored: is '{near[0]}{dot}{rest}' meant?")
        elif key in ("epsilon", "delta") and key not in read_settings(given).get("privacy", {}):
            found.append(f"'{key}' is ignored: is 'privacy.{key}' meant?")
    return found


def find_protocol(settings: Mapping[str, Any]) -> SummingProtocol:
    """Return the summing protocol that `protocol.use` in the settings names."""
    return summing_protocol(settings.get("protocol", {}).get("use", Protocol().use))


def build_config(settings: Mapping[str, Any], clients: int, per_round: int) -> RunConfig:
    """Return the validated configuration of a run for which `clients` nodes have enrolled.

    A round has `per_round` clients unless `settings` have another number.  Raise InputError if a setting does not work
    under Flower, or if `federation.clients` is set to another number than `clients`.
    """
    below = RunConfig(NAME, app=App(_HERE, _HERE), federation=Federation(clients, min(per_round, clients)))
    if not find_protocol(settings).has_cohort:
        settings = merge_settings({_FEDERATION: {"arrival": OPEN}}, dict(settings))
    try:
        config = msgspec.convert(merge_settings(msgspec.to_builtins(below), dict(settings)), RunConfig)
    except msgspec.ValidationError as error:
        raise InputError(explain_error(str(error))) from None
    check_supported(config)
    check_population(config.federation, clients)
    return config


def to_toml(config: RunConfig) -> str:
    """Return a configuration as TOML."""
    return tomli_w.dumps(_without_none(msgspec.to_builtins(config)))


def check_supported(config: RunConfig) -> None:
    """Raise InputError for settings that do not work under Flower."""
    if summing_protocol(config.protocol.use).sparse and not Path(config.deployment.beacon).is_file():
        raise InputError("secagg+ needs public randomness: set deployment.beacon to its file, or use 'secagg'")
    if config.deployment.beacon and not summing_protocol(config.protocol.use).sparse:
        raise InputError(
            "under Flower only secagg+ uses deployment.beacon: remove the setting, or set protocol.use = 'secagg+'"
        )
    if config.federation.selection == "vrf":
        raise InputError(
            "selection by vrf does not work under Flower: set federation.selection to 'balanced' or 'uniform'"
        )
    if config.performance.chunks == "auto":
        raise InputError("under Flower all chunks travel together: set performance.chunks to a number")


def check_usable(model: Floats) -> None:
    """Raise InputError if every node would refuse a model, because a number is not finite or is too large."""
    if model.size and not max(float(model.max()), -float(model.min())) <= LARGEST_WEIGHT:
        raise InputError(
            f"the strategy sends a model with numbers that are not finite or beyond {LARGEST_WEIGHT}, from which no "
            "node trains: if training diverged, lower the learning rates of nodes and strategy"
        )


def check_population(federation: Federation, clients: int) -> None:
    """Raise InputError unless `clients`, the number of enrolled nodes, is `federation.clients`."""
    if federation.clients != clients:
        raise InputError(
            f"{clients} nodes have enrolled, and federation.clients is {federation.clients}: make them equal"
        )


def _without_none(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value is not None
    }


LOG = logging.getLogger("flwr.dordis")  # a child of Flower's logger, so that its lines appear in the app's log
PATIENCE = 60.0
"""Default number of seconds for which the server waits for the nodes' answers at every stage after the training."""
WEIGHT = "num-examples"
"""Default name of the metric by which Flower's strategies weight replies."""
ACCEPT_HOPELESS = "accept-hopeless"
"""Key of the run config that allows a run whose noise lets next to nothing be learnt."""


class DordisGrid(Grid):
    """A grid that sums the replies to train messages by secure aggregation with distributed differential privacy.

    `privacy` has settings of `dordis run`, nested or with dotted keys; it may be `context.run_config`.  It must
    include the number of rounds (`federation.rounds`, or Flower's `num-server-rounds`).  `registry` has the keys of all
    clients, if the clients are fixed beforehand; without it, the nodes connected at the first round are the clients.

    If next to nothing can be learnt under the noise, `HopelessPlan` is raised before any epsilon is spent.  To run
    nevertheless, pass `accept_hopeless=True`, or set `accept-hopeless = true` in the run config.

    The update of a client has the weight that its owner sets, 1 by default.  Metrics in replies are dropped and nodes
    are not asked to evaluate, because metrics would not be private.
    """

    def __init__(
        self,
        grid: Grid,
        privacy: RunConfig | Mapping[str, Any],
        *,
        registry: Registry | None = None,
        weight: str = WEIGHT,
        patience: float = PATIENCE,
        accept_hopeless: bool = False,
    ) -> None:
        self._grid, self._settings, self._registry = grid, read_settings(privacy), registry
        for warning in find_misspelt(privacy):
            LOG.warning("in the settings of the private run %s", warning)
        self._weight, self._patience = weight, patience
        self._accept_hopeless = accept_hopeless or (isinstance(privacy, Mapping) and bool(privacy.get(ACCEPT_HOPELESS)))
        self._private: PrivateRun | None = None

    @property
    def path(self) -> Path:
        """Return the directory of the run, with records, ledger and report; raise InputError before the first round."""
        if self._private is None:
            raise InputError("the run has no directory yet: it begins with the first train messages")
        return self._private.run.records.path

    def send_and_receive(
        self, messages: Iterable[FlowerMessage], *, timeout: float | None = None
    ) -> Iterable[FlowerMessage]:
        """Run a private round with the nodes to which the train messages are addressed; return a reply to each message.

        The reply of a survivor is the model with the private mean added; the reply of a node that was lost, or did not
        take part, is an error.  If `messages` are evaluate messages, nothing is sent and no reply is returned.
        """
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
        name, model = find_model(asked[0].content)
        layout = Layout.from_record(model)
        check_usable(layout.to_vector(model))
        if self._private is None:
            self._private = self._begin(layout, len(asked), timeout)
        private = self._private
        nodes = {node: u for u, node in private.home.nodes.items()}
        messages = {nodes[m.metadata.dst_node_id]: m for m in asked if m.metadata.dst_node_id in nodes}
        model, training = private.app.layout.cast(model), private.home.training
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
        """Enrol the nodes, plan the noise and begin the records; return the new run, whose models have this layout."""
        transport, training = GridTransport(self._grid), TrainMessages()
        mode = self._settings.get("protocol", {}).get("mode", Protocol().mode)
        has_helpers = find_protocol(self._settings).helpers > 0
        enrolment = enrol(transport, self._wait_for_nodes(), self._registry, mode, timeout, has_helpers)
        config = build_config(self._settings, len(enrolment.registry), per_round)
        app = FlowerModel(layout, enrolment.environment, training)
        check_unit(config, enrolment)
        job = prepare(config, app)
        self._check_prospects(job)
        trusted = job.protocol.assistance
        enrolment = enrolment.with_helpers(() if trusted is None else trusted.helpers)
        home = FlowerPopulation(transport, enrolment, job, self._patience, training)
        return PrivateRun(Run.start(home.job, home, Path(config.output), to_toml(config)), home, app)

    def _check_prospects(self, job: Job) -> None:
        """Log and raise `HopelessPlan` if the noise lets next to nothing be learnt, unless `accept_hopeless` is set."""
        if job.design.plan is None or self._accept_hopeless:
            return
        try:
            check_prospects(job.design.plan)
        except HopelessPlan as error:
            LOG.error("private run refused: %s", describe_start(job))
            error.add_note(f"Set {ACCEPT_HOPELESS} = true in the run config to run it all the same.")
            raise

    def _wait_for_nodes(self) -> list[int]:
        """Wait until `federation.clients` (by default 2) nodes are connected; return the ids of all connected nodes."""
        wanted = self._settings["federation"].get("clients", 2)
        while len(nodes := list(self._grid.get_node_ids())) < wanted:
            LOG.info("waiting for nodes: %d of %d", len(nodes), wanted)
            time.sleep(1)
        return sorted(nodes)

    def _reply(
        self, u: ClientId, message: FlowerMessage, finished: FinishedRound, name: str, arrays: ArrayRecord
    ) -> FlowerMessage:
        if all(u in output.survivors for output in finished.result.outputs):
            own = ArrayRecord(dict(arrays.items()))  # some strategies take the arrays out of a reply
            content = RecordDict({name: own, "metrics": MetricRecord({self._weight: self._reply_weight})})
            return FlowerMessage(content, reply_to=message)
        stage = next((at for at, gone in finished.record.dropped.items() if u in gone), "the invitation")
        error = Error(code=ErrorCode.NODE_UNAVAILABLE, reason=f"client {u} was lost at {stage}")
        return FlowerMessage(error, reply_to=message)

    @property
    def _reply_weight(self) -> float:
        """Return the weight of each reply for Flower's strategy: 1, or `privacy.records` if records are the unit."""
        privacy = None if self._private is None else self._private.run.job.config.privacy
        return float(privacy.records) if privacy is not None and privacy.unit == RECORD_UNIT else 1.0

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes; after the first round has begun, only of enrolled nodes."""
        if self._private is None:
            return self._wait_for_nodes()
        enrolled = set(self._private.home.nodes.values())
        return [node for node in self._grid.get_node_ids() if node in enrolled]

    def set_run(self, run: Any) -> None:
        """Tell the wrapped grid to which Flower run it belongs."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Return the Flower run to which the wrapped grid belongs."""
        return self._grid.run

    def create_message(self, *arguments: Any, **options: Any) -> FlowerMessage:
        """Return a new message of the wrapped grid."""
        return self._grid.create_message(*arguments, **options)

    def push_messages(self, messages: Iterable[FlowerMessage]) -> Iterable[str]:
        """Raise InputError: a private round has several stages, so only `send_and_receive` works."""
        raise InputError("a private round has several stages: use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[FlowerMessage]:
        """Raise InputError: a private round has several stages, so only `send_and_receive` works."""
        raise InputError("a private round has several stages: use send_and_receive")


class PrivateRun:
    """A run of dordis under Flower; each `round` is requested by Flower's strategy."""

    def __init__(self, run: Run, home: FlowerPopulation, app: FlowerModel) -> None:
        self.run, self.home, self.app = run, home, app
        plan = run.job.design.plan
        is_hopeless = plan is not None and run_ratio(plan) < NOTHING
        LOG.log(logging.WARNING if is_hopeless else logging.INFO, "%s", describe_start(run.job))
        for warning in run.job.warnings:
            LOG.warning("%s", warning)

    @cached_property
    def _rounds(self) -> Iterator[FinishedRound]:
        return self.run.rounds()

    def round(self, model: ArrayRecord) -> tuple[FinishedRound, ArrayRecord]:
        """Run the next round from this model; return the finished round, and the model with the private mean added."""
        self.app.vector = self.app.layout.to_vector(model)
        finished = self._next()
        if finished is None:
            raise InputError(f"the noise was planned for {self.run.done} rounds, which are over: set federation.rounds")
        record = finished.record
        spent = "" if record.epsilon is None else f", epsilon {record.epsilon:.3g} so far"
        LOG.info("round %d: %d of %d clients%s", record.number, min(record.survivors), len(record.clients), spent)
        if record.number == self.run.job.config.federation.rounds:
            self._close("rounds")
        return finished, self.app.layout.to_record(model, self.app.vector + weighted_mean(finished, self.home.weights))

    def _next(self) -> FinishedRound | None:
        """Run the next round and return it, or None after the last one; if the round fails, close the run and raise."""
        try:
            return next(self._rounds, None)
        except BudgetExceeded:
            self._close("budget")
            raise
        except (RoundFailed, Diverged):
            self._close("failed")
            raise

    def _close(self, reason: str) -> None:
        """Write the result of the run, and log its epsilon and its directory."""
        result = self.run.close(reason)
        design, path = self.run.job.design, self.run.records.path.resolve()
        epsilon = "no epsilon is proved"
        if result.epsilon is not None:
            spent = f"{result.spent:.3g} of {design.epsilon:g} spent"
            epsilon = f"epsilon {result.epsilon:.3g} at delta {result.delta:g} ({spent})"
        LOG.info("private run ended after %d rounds: %s; records in %s", result.rounds, epsilon, path)


def check_unit(config: RunConfig, enrolment: Enrolment) -> None:
    """Raise InputError if nodes have weights although records are the unit of privacy: all records count equally."""
    check_record_column(config)
    if config.privacy.unit == RECORD_UNIT and set(enrolment.weights.values()) != {1.0}:
        raise InputError("with privacy.unit = 'record' nodes have no weights: leave dordis-weight out on all of them")


def describe_start(job: Job) -> str:
    """Return a log line about a new run: nodes, rounds, epsilon and signal-to-noise ratio."""
    design, federation = job.design, job.config.federation
    nodes = f"{federation.clients} nodes, {federation.per_round} a round, {federation.rounds} rounds"
    if not design.proves:
        return f"private run: {nodes}; no epsilon is proved"
    line = f"private run: {nodes}, epsilon {design.epsilon:g}, delta {design.delta:g}"
    if design.plan is None:
        return line
    ratio = run_ratio(design.plan)
    line += f"; signal-to-noise ratio {ratio:.2g}: {describe_ratio(ratio)}"
    if ratio >= ENOUGH:
        return line
    needs = " and ".join(
        f"{clients_for_ratio(design.plan, wanted):,} for {wanted:g}" for wanted in (EQUAL, ENOUGH) if wanted > ratio
    )
    return f"{line} (nodes needed: about {needs})"
