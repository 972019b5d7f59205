"""The mod of a ClientApp that takes part in private rounds: one client of dordis, made anew for every message."""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Union

import numpy as np
from flwr.app import Context, Error, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode

from dordis import wire
from dordis.errors import DordisError, InputError, ParametersRefused, ProtocolError
from dordis.federation.beacon import Beacon
from dordis.federation.colluders import BALANCED, UNIFORM
from dordis.federation.parties import SelectionRule, build_client
from dordis.federation.policy import Policy
from dordis.federation.registry import Keys, Registry
from dordis.federation.selection import Selection
from dordis.integrations.flower.arrays import Layout, model_of
from dordis.integrations.flower.binding import check_invitation_names, digest_environment, received_model
from dordis.integrations.flower.files import FileState
from dordis.integrations.flower.messages import (
    RECORD,
    Charter,
    CharterRead,
    Enrol,
    Enrolled,
    from_record,
    seal,
    to_record,
)
from dordis.integrations.flower.pins import (
    Pins,
    check_cohort_pinned,
    check_has_beacon,
    check_pinned_or_simulated,
    check_registry,
    check_time_fixed,
    is_simulated,
)
from dordis.integrations.flower.state import NodeState, RunState
from dordis.network.training import user_code_for
from dordis.privacy.encoding import Entropy
from dordis.privacy.mechanisms.mechanism import Mechanism
from dordis.privacy.skellam import Floats
from dordis.protocol import ClientId, Message
from dordis.protocols.summing import SummingProtocol
from dordis.protocols.table import SUMMING, summing_protocol
from dordis.rounds.app import AppClient, AppForm, RoundInfo
from dordis.rounds.client import Client
from dordis.rounds.invitation import Accepted, Invite, Train, check_trainable
from dordis.rounds.model import DTYPES, LastModel, ModelBytes, Numbers

log = logging.getLogger("dordis.flower")

USUAL = Policy(epsilon=6.0, delta=1e-5)
"""What an owner agrees to who has said nothing else."""

CallNext = Callable[[FlowerMessage, Context], FlowerMessage]


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
        try:
            for frame, bulk in requests:
                answer = node.answer(frame, bulk)
                answers.append(seal(answer))
                if isinstance(answer, Accepted) and not answer.selected:
                    break
        except DordisError as error:
            refusal = str(error)
        finally:
            node.release()
        return FlowerMessage(RecordDict({RECORD: to_record(answers, refusal)}), reply_to=message)


dordis_mod = DordisMod()


class Node:
    """One node while it answers one message: its owner's files, its state, and the client made of them."""

    def __init__(self, mod: DordisMod, message: FlowerMessage, context: Context, call_next: CallNext) -> None:
        self._mod, self._pins, self._simulated = mod, Pins(context.node_config), is_simulated()
        self._environment = partial(digest_environment, context)
        self._run, directory = RunState(context.state, context.run_id), self._pins.state()
        self._state: NodeState = self._run if directory is None else FileState(directory, context.run_id)
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
                return self._enrol(request)
            case Charter():
                return self._read(request)
            case Invite():
                self._check_protected(request.terms.mode)
                check_invitation_names(request, self._app.received)
                check_trainable(ModelBytes.of(self._app.vector()))
        client = self._client = self._client or self._made()
        if not isinstance(request, Invite) and client.round is None and self._state.under_way is not None:
            client.restore(self._state.under_way)
        reply = client.handle(request)
        if request.uploads:
            self._drop_input(client)
        return reply

    def _check_protected(self, mode: str) -> None:
        """Raise if the node lacks the settings that the mode requires."""
        check_pinned_or_simulated(mode, self._pins, self._simulated)
        check_time_fixed(mode, self._pins, self._simulated)

    def release(self) -> None:
        """Close the journal of the round under way; the next message opens it again."""
        if self._client is not None:
            self._client.stop()

    def _enrol(self, request: Enrol) -> Enrolled:
        self._check_protected(request.mode)
        identity = self._keys.identity()
        return Enrolled(identity.signing, identity.vrf, self._environment(), self._pins.weight(), self._simulated)

    def _drop_input(self, client: Client) -> None:
        """Drop the input from the state, once all of it has left."""
        round = client.round
        if round is not None and round.summing is not None and round.summing.uploaded:
            self._state.drop_input(round.invite.round)

    @property
    def _keys(self) -> Keys:
        """Return the keys of the owner's file, or those of this node's own."""
        return self._pins.keys() or self._run.keys()

    def _read(self, charter: Charter) -> CharterRead:
        """Check and store the charter of a run; a pinned node compares registry and cohort with its owner's."""
        registry, pinned, known = Registry.from_bytes(charter.registry), self._pins.registry(), self._state.charter
        if known is not None:
            check_first_charter(charter, known, self._simulated)
            check_registry(registry, Registry.from_bytes(known.registry), "of the runs before")
        if pinned is not None:
            check_registry(registry, pinned, "that the owner has pinned")
        check_cohort_pinned(charter, self._pins)
        check_has_beacon(protocol_of(charter), self._pins.config)
        selection_of(charter, registry, self._pins.beacon())
        my_id(registry, self._keys)
        if charter != known:
            self._state.keep_charter(charter)
        return CharterRead()

    def _made(self) -> Client:
        """Make the client, as it is known from the charter and from its owner."""
        charter = self._state.charter
        if charter is None:
            raise ProtocolError("this node has not heard of the run: the invitation came before its charter")
        registry = Registry.from_bytes(charter.registry)
        me = my_id(registry, self._keys)
        return build_client(
            me,
            self._app,
            protocol_of(charter),
            self._pins.policy(self._mod.policy),
            selection_of(charter, registry, self._pins.beacon()),
            self._state.participation(),
            root=registry.root(),
            vrf_key=self._keys.vrf,
            beacon=self._pins.beacon(),
            mechanism=self._mod.mechanism,
            signing=self._keys.signing,
            registry=registry.signing_keys(),
            trainings=self._state.trainings(),
            journals=self._state.journals,
            models=self._app.models(),
            entropy=self._mod.entropy,
            user_code=user_code_for(
                None if self._simulated else self._pins.train_seconds(), log.error, self._state.note_training
            ),
            form=self._app.form(),
        )


class Trainee(AppClient):
    """The app's own train function as an application: the update is what it changes in the model."""

    def __init__(self, message: FlowerMessage, context: Context, call_next: CallNext) -> None:
        self._message, self._context, self._call_next = message, context, call_next

    @cached_property
    def received(self) -> ModelBytes:
        """Return the digest of the train message, as an invitation names it."""
        return received_model(self._message, self._context)

    def vector(self) -> Floats:
        """Return the numbers of the model in the message."""
        _, model = model_of(self._message.content)
        return Layout.of(model).vector(model)

    def form(self) -> AppForm | None:
        """Return the lengths of the digest and of an update, if the message has a model."""
        if not self._message.content.array_records:
            return None
        return AppForm(DTYPES[0], frozenset({len(self.received.array)}), frozenset({len(self.vector())}))

    def models(self) -> LastModel:
        """Return a cache with the digest of the train message, if it has a model."""
        models = LastModel()
        if self._message.content.array_records:
            models.keep(self.received)
        return models

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Have the app train on the message as the strategy wrote it."""
        content = RecordDict({name: record for name, record in self._message.content.items() if name != RECORD})
        _, model_record = model_of(content)
        layout = Layout.of(model_record)
        before = layout.vector(model_record)  # the app may change the message that it is given
        reply = self._call_next(FlowerMessage(content, metadata=self._message.metadata), self._context)
        if reply.has_error():
            raise InputError(f"the train function of this node failed: {reply.error.reason}")
        _, after = model_of(reply.content)
        update: Floats = np.subtract(layout.vector(after), before)
        return update * Pins(self._context.node_config).weight()


def protocol_of(charter: Charter) -> SummingProtocol:
    """Return the protocol of a run: one that comes with dordis, and that hides updates."""
    if charter.protocol not in SUMMING or not summing_protocol(charter.protocol).hides_updates:
        raise ParametersRefused(f"this node takes no part in rounds of the protocol '{charter.protocol}'")
    return summing_protocol(charter.protocol)


def selection_of(charter: Charter, registry: Registry, beacon: Beacon | None) -> Selection:
    """Return the selection of a run; in a run of SecAgg+ the beacon also decides the permutation."""
    if charter.selection not in (BALANCED, UNIFORM):
        raise ParametersRefused(
            f"this node cannot verify the selection '{charter.selection}': use '{BALANCED}', or '{UNIFORM}' in "
            "the mode semi-honest"
        )
    drawn = protocol_of(charter).sparse and beacon is not None
    rule = SelectionRule(charter.selection, charter.per_round, charter.least, drawn)
    return rule.selection(registry, charter.run, beacon)


def my_id(registry: Registry, keys: Keys) -> ClientId:
    """Return who I am: the client with my keys."""
    identity = keys.identity()
    for u, registered in registry.items():
        if registered == identity:
            return u
    raise ParametersRefused("the registry of the run does not have the keys of this node")


def check_first_charter(charter: Charter, known: Charter, simulated: bool) -> None:
    """The first charter of a Flower run is final: a server that could rewrite it would choose the selection.

    In a simulation nobody is protected, and several runs may follow each other.
    """
    if charter != known and not (simulated and charter.run != known.run):
        raise ParametersRefused(
            "the charter differs from the first one of this Flower run, which is final: begin another Flower run for "
            "another run of dordis"
        )
