"""The clients of a run under Flower: the nodes that have enrolled with their keys."""

import logging
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict
from msgspec import UNSET

from dordis import wire
from dordis.durable_files import write_new
from dordis.errors import DordisError, InputError
from dordis.identity.certificates import Identity
from dordis.identity.registry import Registry
from dordis.integrations.flower.exchange import FlowerExchange, GridTransport, NodeRefused, TrainMessages, open_reply
from dordis.integrations.flower.messages import (
    RECORD,
    Enrol,
    Enrolled,
    Layout,
    RunDescription,
    check_weight,
    digest_training,
    seal,
    to_record,
)
from dordis.ledger.round_charge import OwnerCharge
from dordis.owner.participation import Attendance
from dordis.pipeline.executor import execute_in_lockstep
from dordis.privacy.scaling import Floats
from dordis.protocol import ClientId
from dordis.protocols.encoded_sums import Aggregate
from dordis.records.manifest import DEPLOYED
from dordis.rounds.app import AppServer, RoundInfo
from dordis.rounds.engine import AgreedRound, RoundEngine, RoundResult, RoundRunner, at_once
from dordis.rounds.watch import Watch, silent
from dordis.runs.coordinator import FinishedRound
from dordis.runs.job import Job, selection_kind
from dordis.selection.beacon import FileBeacon
from dordis.selection.selection import OpenArrival, Selection, UniformSelection

LOG = logging.getLogger("flwr.dordis")
REGISTRY, WEIGHTS = "registry.json", "weights.json"


class FlowerModel(AppServer):
    """The server's application of a run under Flower; the model itself belongs to Flower's strategy."""

    folds: ClassVar[bool] = True

    def __init__(self, layout: Layout, environment: bytes, training: TrainMessages) -> None:
        self.layout, self._environment, self._training = layout, environment, training
        self.vector: Floats = np.zeros(layout.dim)

    @property
    def dim(self) -> int:
        """Return the number of coordinates of the model."""
        return self.layout.dim

    def model(self) -> Floats:
        """Return, in place of the model, the digest of all data that nodes receive for training, the model included."""
        return digest_training(self._training.content, self._environment)

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Do nothing: Flower's strategy uses the private mean."""


@dataclass(frozen=True)
class Enrolment:
    """The enrolled nodes: their keys, the weights of their updates, and the digest of their common environment."""

    registry: Registry
    nodes: Mapping[ClientId, int]
    weights: Mapping[ClientId, float]
    environment: bytes
    """Digest of run config and app bundle, which are the same on all nodes."""
    simulated: bool
    """Whether the nodes belong to Flower's simulation engine."""
    offers: Mapping[int, Identity] = field(default_factory=dict)
    """Public keys, as helpers, of the nodes that offer to be helpers."""
    helpers: Mapping[ClientId, int] = field(default_factory=dict)
    """The node of every helper, by the helper's id."""

    def with_helpers(self, ids: Collection[int]) -> "Enrolment":
        """Return this enrolment with a node for each of these helper ids; raise InputError if too few offer to help."""
        if not ids:
            return self
        registry, helpers = assign_helpers(self.registry, self.offers, ids)
        return replace(self, registry=registry, helpers=helpers)


@dataclass
class FlowerPopulation:
    """The population of a run under Flower: the enrolled nodes; `open` returns the runner of their rounds."""

    transport: GridTransport
    enrolment: Enrolment
    job: Job
    patience: float
    training: TrainMessages
    where: str = "by Flower"
    selection_seed: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    consents: tuple[str, ...] = ()
    """Empty, because nodes do not report what their owners allow beyond the default policy."""

    @property
    def fidelity(self) -> str:
        """Return `full` if Flower simulates the nodes, otherwise `deployed`."""
        return "full" if self.enrolment.simulated else DEPLOYED

    @property
    def registry(self) -> Registry:
        """Return the registry of all clients."""
        return self.enrolment.registry

    @property
    def nodes(self) -> Mapping[ClientId, int]:
        """Return the id of the Flower node of every client."""
        return self.enrolment.nodes

    @property
    def weights(self) -> Mapping[ClientId, float]:
        """Return the weight of every client's updates."""
        return self.enrolment.weights

    @property
    def beacon(self) -> FileBeacon:
        """Return the beacon in the file `deployment.beacon`, from which sparse graphs are drawn."""
        path = self.job.config.deployment.beacon
        return FileBeacon(Path(path), "" if path else "none")

    @property
    def root(self) -> bytes:
        """Return the root of the registry."""
        return self.registry.root()

    def last_index(self) -> int:
        """Return -1: no index of a round is stored outside the records of the run."""
        return -1

    def explain_failure(self) -> str:
        """Return an empty text, because the error itself gives the reason."""
        return ""

    def interrupted(self) -> None:
        """Return None, because interrupted rounds are not resumed under Flower."""

    def store(self, path: Path) -> None:
        """Write the registry to a run's directory, and the weights of clients unless all are 1."""
        self.registry.save(path / REGISTRY)
        if set(self.weights.values()) != {1.0}:
            write_new(path / WEIGHTS, msgspec.json.encode(self.weights))

    def open(self, run: bytes, selection: Selection, counted: Mapping[Attendance, OwnerCharge]) -> RoundRunner:
        """Return the runner of the run's rounds, which sends its requests in Flower messages; `counted` is not used."""
        federation = self.job.config.federation
        description = RunDescription(
            run=run,
            registry=self.registry.to_bytes(),
            protocol=self.job.config.protocol.use,
            selection=selection_kind(self.job.config),
            per_round=federation.per_round,
            least=self.job.design.setting.t if self.job.protocol.has_cohort else self.job.design.least,
            record=self.job.config.privacy.record,
        )
        helpers, by_record = self.enrolment.helpers, self.job.design.setting.records is not None
        exchange = FlowerExchange(
            self.transport, self.nodes, description, self.training, self.patience, helpers, by_record
        )

        def available(index: int) -> Collection[ClientId]:
            """Return the clients that Flower's strategy sampled; all clients if a public schedule selects them."""
            sampled = isinstance(selection, UniformSelection | OpenArrival)
            return self.training.clients if sampled else tuple(self.nodes)

        return FlowerRounds(
            exchange,
            self.job.protocol,
            self.registry.signing_keys(),
            available,
            suite=self.job.suite,
            meter=exchange,
            compute=at_once,
            execute=execute_in_lockstep,
            delivers=False,
            helpers=tuple(helpers),
        )


class FlowerRounds(RoundEngine):
    """The round engine over Flower messages."""

    def __init__(self, exchange: FlowerExchange, *arguments: Any, **options: Any) -> None:
        super().__init__(exchange, *arguments, **options)
        self._flower = exchange

    def sum(self, agreed: AgreedRound, watch: Watch = silent) -> RoundResult:
        """Run the summing protocol with the clients of the round, or with invited clients if the round lists none."""
        self._flower.invited = () if agreed.invitation is None else agreed.invitation.clients
        return super().sum(agreed, watch)


def enrol(
    transport: GridTransport,
    nodes: Collection[int],
    known: Registry | None,
    mode: str,
    timeout: float | None,
    helpers: bool = False,
) -> Enrolment:
    """Ask nodes for their public keys and, if `helpers`, also for public keys as helpers; return their enrolment.

    Nodes whose keys are not in the `known` registry are left out.  Without a known registry, a new registry is made of
    the nodes' keys; it is only as trustworthy as the SuperLink, because the SuperLink relays the keys.
    """
    asked = RecordDict({RECORD: to_record([seal(Enrol(mode, helpers or UNSET))])})
    replies = transport.send(dict.fromkeys(nodes, asked), timeout)
    enrolled = {node: _read_enrolment(node, reply) for node, reply in sorted(replies.items())}
    if not enrolled:
        raise InputError("no node enrolled in time: see the logs of the nodes, or give the strategy a longer timeout")
    check_same_environment({node: answer.environment for node, answer in enrolled.items()})
    identities = {node: Identity(keys.signing, keys.vrf) for node, keys in enrolled.items()}
    if known is None:
        clients = {ClientId(place): node for place, node in enumerate(identities, 1)}
        known = Registry({u: identities[node] for u, node in clients.items()})
    else:
        clients = _match_registry(known, identities)
    weights = {u: enrolled[node].weight for u, node in clients.items()}
    environment = next(iter(enrolled.values())).environment
    offers = {node: Identity(keys.helper[:32], keys.helper[32:]) for node, keys in enrolled.items() if keys.helper}
    simulated = any(answer.simulated for answer in enrolled.values())
    return Enrolment(known, clients, weights, environment, simulated, offers)


def assign_helpers(
    registry: Registry, offers: Mapping[int, Identity], ids: Collection[int]
) -> tuple[Registry, dict[ClientId, int]]:
    """Return the registry with helpers of these `ids`, and the node of each helper.

    `offers` has, by node id, the keys as helpers of the nodes that offer to be helpers.  If the registry already has
    helpers, a helper's node is the one with the same keys; otherwise the first nodes in `offers` become helpers.  Raise
    InputError if nodes are missing, or if the helpers in the registry do not have exactly these `ids`.
    """
    if registry.helpers:
        nodes = {identity: node for node, identity in offers.items()}
        missing = [h for h in ids if registry.helpers.get(ClientId(h)) not in nodes]
        if missing or len(registry.helpers) != len(ids):
            raise InputError(
                f"the registry has {len(registry.helpers)} helpers, and the run needs those with the ids "
                f"{', '.join(map(str, ids))}, all of them connected: make protocol.options and the registry agree"
            )
        return registry, {h: nodes[identity] for h, identity in registry.helpers.items()}
    if len(offers) < len(ids):
        raise InputError(
            f"{len(offers)} nodes offer to be helpers, and the run needs {len(ids)}: put "
            "DordisMod(policy, assists=HelperPolicy()) on more of them, or lower protocol.options.helpers"
        )
    nodes_of = {ClientId(h): node for h, node in zip(ids, offers, strict=False)}
    return Registry(registry, {h: offers[node] for h, node in nodes_of.items()}), nodes_of


def check_same_environment(environments: Mapping[int, bytes]) -> None:
    """Raise InputError unless all nodes have the same run config and app bundle: else some would refuse every round."""
    (first, expected), *others = environments.items()
    for node, environment in others:
        if environment != expected:
            raise InputError(
                f"node {node} has another run config or app bundle than node {first}, which would isolate its update: "
                "give all nodes the same, and set a node's own values with --node-config"
            )


def _read_enrolment(node: int, reply: FlowerMessage) -> Enrolled:
    """Return a node's answer at enrolment; raise InputError, with advice, if the node cannot take part."""
    advice = "; put dordis_mod among the mods of its ClientApp, of the same version of dordis as here"
    try:
        sealed, refusal = open_reply(reply)
        if refusal:
            advice = ""
            raise NodeRefused(refusal)
        ((frame, _),) = sealed
        enrolled = wire.decode(frame, Enrolled)
        check_weight(enrolled.weight)
    except (DordisError, ValueError) as error:
        raise InputError(f"node {node} cannot take part in private rounds: {error}{advice}") from None
    return enrolled


def weighted_mean(finished: FinishedRound, weights: Mapping[ClientId, float]) -> Floats:
    """Return the weighted mean of updates: the sum of each chunk, divided by the sum of its survivors' weights.

    With records as the unit of privacy, return the sum divided by the expected number of sampled records.
    """
    aggregate, parameters = finished.result.aggregate, finished.parameters
    summed = [sum(weights[u] for u in output.survivors) for output in finished.result.outputs]
    blocks = [(span.stop - span.start) // parameters.encoding.block for span in parameters.chunks]
    chunks = len(aggregate.survivors)  # chunks of the update, without the chunk of the clipping bit
    by_coordinate = replace(aggregate, by_block=np.repeat(summed[:chunks], blocks[:chunks])).counts
    mean: Floats = aggregate.total / (by_coordinate * aggregate.batch)
    return mean


def _match_registry(known: Registry, identities: Mapping[int, Identity]) -> dict[ClientId, int]:
    ids = {identity: u for u, identity in known.items()}
    for node in [node for node, identity in identities.items() if identity not in ids]:
        LOG.warning("node %d is left out: its keys are not in the registry", node)
    return {ids[identity]: node for node, identity in identities.items() if identity in ids}
