"""The mod of a ClientApp that takes part in private rounds: one client of dordis, made anew for every message."""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import msgspec
import numpy as np
from flwr.app import Context, Error, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode

from dordis import wire
from dordis.errors import DordisError, InputError, ParametersRefused, ProtocolError
from dordis.federation.beacon import FileBeacon
from dordis.federation.identity import load_keys
from dordis.federation.owner import Owner
from dordis.federation.participation import FileParticipation, Participation
from dordis.federation.policy import Policy
from dordis.federation.registry import Keys, Registry
from dordis.federation.selection import Balanced, Selection, Uniform
from dordis.integrations.flower.arrays import Layout, model_of
from dordis.integrations.flower.messages import (
    RECORD,
    Charter,
    CharterRead,
    Enrol,
    Enrolled,
    check_weight,
    from_record,
    seal,
    to_record,
)
from dordis.integrations.flower.state import RunState, StateJournals
from dordis.privacy.encoding import Entropy
from dordis.privacy.mechanisms.mechanism import Mechanism
from dordis.privacy.skellam import Floats
from dordis.protocol import ClientId, Message
from dordis.protocols.summing import SummingProtocol
from dordis.protocols.table import SUMMING, summing_protocol
from dordis.rounds.app import AppClient, RoundInfo
from dordis.rounds.client import Client
from dordis.rounds.invitation import Accepted, Invite, Train
from dordis.rounds.model import LastModel, ModelBytes, Numbers
from dordis.rounds.user_code import ZeroOnFailure

log = logging.getLogger("dordis.flower")

KEYS, REGISTRY, PARTICIPATIONS = "dordis-keys", "dordis-registry", "dordis-participations"
BEACON = "dordis-beacon"
"""Settings of a node (`flower-supernode --node-config`): files of its owner, each of which may be left out."""
WEIGHT = "dordis-weight"
"""Setting of a node: what its updates count for, above 0 and at most 1; everybody may know it."""
EPSILON, DELTA = "dordis-epsilon", "dordis-delta"
"""Settings of a node: the budget of its owner, in place of that of the mod."""
USUAL = Policy(epsilon=6.0, delta=1e-5)
"""What an owner agrees to who has said nothing else."""

CallNext = Callable[[FlowerMessage, Context], FlowerMessage]
SELECTIONS = ("balanced", "uniform")


@dataclass(frozen=True)
class DordisMod:
    """Answer the messages of private rounds, and nothing else; the app's own train function makes the update.

    `policy` is what the owner of the node agrees to.  A `mechanism` that does not come with dordis is given here.
    """

    policy: Policy = USUAL
    mechanism: type[Mechanism] | None = None
    entropy: Entropy = secrets.token_bytes

    def __call__(self, message: FlowerMessage, context: Context, call_next: CallNext) -> FlowerMessage:
        """Answer a message of Flower: each request in it in turn, up to the first that is refused."""
        try:
            if RECORD not in message.content.config_records:
                raise InputError("this node takes part in private rounds only: wrap the grid of the ServerApp")
            requests, _ = from_record(message.content)
            node = Node(self, message, context, call_next)
        except DordisError as error:
            return FlowerMessage(Error(ErrorCode.MOD_FAILED_PRECONDITION, str(error)), reply_to=message)
        answers, refusal = [], ""
        for frame, bulk in requests:
            try:
                answer = node.answer(frame, bulk)
            except DordisError as error:
                refusal = str(error)
                break
            answers.append(seal(answer))
            if isinstance(answer, Accepted) and not answer.selected:
                break
        return FlowerMessage(RecordDict({RECORD: to_record(answers, refusal)}), reply_to=message)


dordis_mod = DordisMod()


class Node:
    """One node while it answers one message: its owner's files, its state, and the client made of them."""

    def __init__(self, mod: DordisMod, message: FlowerMessage, context: Context, call_next: CallNext) -> None:
        self._mod, self._message = mod, message
        self._state, self._config = RunState(context.state), context.node_config
        self._journals = StateJournals(context.state, self._state)
        self._app = Trainee(message, context, call_next)
        self._client: Client | None = None

    def answer(self, frame: bytes, bulk: wire.Bulk) -> Message:
        """Answer one request."""
        charter = self._state.charter
        summing = () if charter is None else protocol_of(charter).requests
        kinds: Any = Union[(Enrol, Charter, Invite, Train, *summing)]
        request = wire.decode(frame, kinds, bulk=bulk)
        match request:
            case Enrol():
                identity = self._keys.identity()
                return Enrolled(identity.signing, identity.vrf, weight_of(self._config))
            case Charter():
                return self._read(request)
        client = self._client = self._client or self._made()
        if not isinstance(request, Invite) and client.round is None and self._journals.under_way is not None:
            client.restore(self._journals.under_way)
        reply = client.handle(request)
        if request.uploads:
            self._drop_input(client)
        return reply

    def _drop_input(self, client: Client) -> None:
        """Drop the input from the state, once all of it has left."""
        round = client.round
        if round is not None and round.summing is not None and round.summing.uploaded:
            self._journals(round.invite.round).uploaded()

    @property
    def _keys(self) -> Keys:
        """Return the keys of the owner's file, or those of this node's own."""
        if KEYS not in self._config:
            return self._state.keys()
        keys = load_keys(Path(str(self._config[KEYS]))).keys
        if keys is None:
            raise InputError(f"{self._config[KEYS]} is a server's: give the key file of a client")
        return keys

    def _read(self, charter: Charter) -> CharterRead:
        """Take note of a run; its registry is the owner's, or else the first that this node heard of."""
        registry, known = Registry.from_bytes(charter.registry), self._state.charter
        if REGISTRY in self._config:
            check_registry(registry, Registry.load(Path(str(self._config[REGISTRY]))), "that the owner has pinned")
        if known is not None:
            check_registry(registry, Registry.from_bytes(known.registry), "of the runs before")
        check_has_beacon(protocol_of(charter), self._config)
        selection_of(charter, registry)
        my_id(registry, self._keys)
        self._state.charter = charter
        return CharterRead()

    def _made(self) -> Client:
        """Make the client, as it is known from the charter and from its owner."""
        charter = self._state.charter
        if charter is None:
            raise ProtocolError("this node has not heard of the run: the invitation came before its charter")
        registry = Registry.from_bytes(charter.registry)
        me = my_id(registry, self._keys)
        owner = Owner(
            me,
            self._policy,
            selection_of(charter, registry),
            self._participation,
            registry.root(),
            self._keys.vrf,
            FileBeacon(Path(str(self._config[BEACON]))) if BEACON in self._config else None,
            self._mod.mechanism,
        )
        return Client(
            me,
            self._app,
            owner,
            protocol_of(charter),
            signing=self._keys.signing,
            registry=registry.signing_keys(),
            mechanism=self._mod.mechanism,
            journals=self._journals,
            models=self._app.models(),
            entropy=self._mod.entropy,
            user_code=ZeroOnFailure(log.error),
        )

    @property
    def _policy(self) -> Policy:
        """Return the policy of the mod, with the owner's own budget if there is one."""
        budget = {"epsilon": EPSILON, "delta": DELTA}
        own = {name: float(self._config[key]) for name, key in budget.items() if key in self._config}
        return msgspec.structs.replace(self._mod.policy, **own)

    @property
    def _participation(self) -> Participation:
        """Return the owner's count over all runs and servers, or that of this run of Flower."""
        path = self._config.get(PARTICIPATIONS)
        return self._state.participation() if path is None else FileParticipation(Path(str(path)))


class Trainee(AppClient):
    """The app's own train function as an application: the update is what it changes in the model."""

    def __init__(self, message: FlowerMessage, context: Context, call_next: CallNext) -> None:
        self._message, self._context, self._call_next = message, context, call_next

    def models(self) -> LastModel:
        """Return the model that came with the message, if one did."""
        models = LastModel()
        if self._message.content.array_records:
            _, model = model_of(self._message.content)
            models.keep(ModelBytes.of(Layout.of(model).vector(model)))
        return models

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Have the app train on the message as the strategy wrote it."""
        content = RecordDict({name: record for name, record in self._message.content.items() if name != RECORD})
        reply = self._call_next(FlowerMessage(content, metadata=self._message.metadata), self._context)
        if reply.has_error():
            raise InputError(f"the train function of this node failed: {reply.error.reason}")
        _, before = model_of(content)
        _, after = model_of(reply.content)
        layout = Layout.of(before)
        update: Floats = np.subtract(layout.vector(after), layout.vector(before))
        return update * weight_of(self._context.node_config)


def protocol_of(charter: Charter) -> SummingProtocol:
    """Return the protocol of a run: one that comes with dordis, and that hides updates."""
    if charter.protocol not in SUMMING or not summing_protocol(charter.protocol).hides_updates:
        raise ParametersRefused(f"this node takes no part in rounds of the protocol '{charter.protocol}'")
    return summing_protocol(charter.protocol)


def selection_of(charter: Charter, registry: Registry) -> Selection:
    """Return how the clients of a run are selected."""
    if charter.selection == "balanced":
        return Balanced(registry, charter.run, charter.per_round, charter.least)
    if charter.selection == "uniform":
        return Uniform(charter.per_round, b"", charter.least)
    raise ParametersRefused(f"this node cannot verify a selection of the kind '{charter.selection}'")


def weight_of(config: Mapping[str, Any]) -> float:
    """Return what the updates of a node count for."""
    weight = float(config.get(WEIGHT, 1.0))
    check_weight(weight)
    return weight


def my_id(registry: Registry, keys: Keys) -> ClientId:
    """Return who I am: the client with my keys."""
    identity = keys.identity()
    for u, registered in registry.items():
        if registered == identity:
            return u
    raise ParametersRefused("the registry of the run does not have the keys of this node")


def check_has_beacon(protocol: SummingProtocol, config: Mapping[str, Any]) -> None:
    """Who is to mask with whom can be verified here: no data is touched otherwise."""
    if protocol.sparse and BEACON not in config:
        raise ParametersRefused(f"'{protocol.name}' is verified with public randomness: set {BEACON} on this node")


def check_registry(told: Registry, known: Registry, which: str) -> None:
    """The run has the registry that is known here."""
    if told.root() != known.root():
        raise ParametersRefused(f"the run has another registry than the one {which}")
