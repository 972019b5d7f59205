"""The mod of a ClientApp for private rounds: it contains a client of dordis, built anew for every Flower message."""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Union

from flwr.app import Context, Error, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode
from msgspec import UNSET

from dordis import wire
from dordis.errors import DordisError, InputError, ParametersRefused, ProtocolError
from dordis.identity.keys import Keys
from dordis.identity.registry import Registry
from dordis.integrations.flower.messages import (
    RECORD,
    DescriptionRead,
    Enrol,
    Enrolled,
    RunDescription,
    check_invitation_names,
    digest_environment,
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
    check_room,
    check_time_fixed,
    is_simulated,
)
from dordis.integrations.flower.state import FileState, NodeState, RunState, StateHelperStore
from dordis.integrations.flower.training import CallNext, FlowerApp, check_record_ids
from dordis.owner.policy import Policy
from dordis.privacy.encoding import Entropy
from dordis.privacy.mechanisms import Mechanism
from dordis.protocol import ClientId, Message, Role
from dordis.protocols import SUMMING, summing_protocol
from dordis.protocols.assisted.helper import AssistedHelper, HelperPolicy, HelperStore
from dordis.protocols.summing import SummingProtocol, VerifyClient
from dordis.rounds.catch_up import check_trainable
from dordis.rounds.client import Client
from dordis.rounds.invitation import Accepted, Invite, Train
from dordis.rounds.model import ModelBytes
from dordis.rounds.records import rehearse_batches
from dordis.rounds.user_code import user_code_for
from dordis.runs.parties import SelectionRule, build_client
from dordis.selection.beacon import Beacon
from dordis.selection.colluders import BALANCED, OPEN, UNIFORM
from dordis.selection.selection import Selection

log = logging.getLogger("dordis.flower")

DEFAULT_POLICY = Policy(epsilon=6.0, delta=1e-5)
"""The policy of a node if its owner passes none to `DordisMod`."""


@dataclass(frozen=True)
class DordisMod:
    """A Flower mod that answers the messages of private rounds and refuses all others.

    The app's train function computes the update.

    `policy` has the bounds that the node's owner sets, such as the budget; `mechanism` is a mechanism that is not
    built in.  With a helper policy in `assists` the node also offers to be a helper, under this policy.
    """

    policy: Policy = DEFAULT_POLICY
    mechanism: type[Mechanism] | None = None
    entropy: Entropy = secrets.token_bytes
    assists: HelperPolicy | None = None

    def __call__(self, message: FlowerMessage, context: Context, call_next: CallNext) -> FlowerMessage:
        """Return the replies to the requests in a Flower message, in order, up to the first refused request."""
        try:
            if RECORD not in message.content.config_records:
                raise InputError(
                    "this node takes part in private rounds only: wrap the grid of the ServerApp in DordisGrid"
                )
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
    """A node while it answers one Flower message: its owner's settings, its state, and its client or helper."""

    def __init__(self, mod: DordisMod, message: FlowerMessage, context: Context, call_next: CallNext) -> None:
        self._mod, self._pins, self._simulated = mod, Pins(context.node_config), is_simulated()
        self._environment = partial(digest_environment, context)
        self._run, directory = RunState(context.state, context.run_id), self._pins.state()
        self._state: NodeState = self._run if directory is None else FileState(directory, context.run_id)
        self._app = FlowerApp(message, context, call_next)
        self._client: Client | None = None
        self._helper_store: Callable[[], HelperStore] = partial(StateHelperStore, context.state)
        if self._pins.is_pinned:
            self._helper_store = self._pins.helper_store
        self._helper: AssistedHelper | None = None
        self._is_described = False
        """Whether this Flower message contains the run's description; only the first message of a run contains it."""

    def answer(self, frame: bytes, bulk: wire.Bulk) -> Message:
        """Return the reply to the request in `frame`, with its large field `bulk`; raise if the node refuses it."""
        description = self._state.description
        summing = () if description is None else find_protocol(description).requests
        kinds: Any = Union[(Enrol, RunDescription, Invite, Train, *summing)]
        request = wire.decode(frame, kinds, bulk=bulk)
        match request:
            case Enrol():
                return self._enrol(request)
            case RunDescription():
                return self._accept_description(request)
            case Invite():
                self._check_protected(request.terms.mode)
                check_invitation_names(request, self._app.received_digest)
                check_trainable(ModelBytes.from_numbers(self._app.model_vector()))
        if request.role is Role.HELPER:
            self._helper = self._helper or self._build_helper()
            return self._helper.handle(request)
        client = self._client = self._client or self._build_client()
        if not isinstance(request, Invite) and client.round is None and self._state.open_round is not None:
            client.restore(self._state.open_round)
        reply = client.handle(request)
        if isinstance(request, Invite) and isinstance(reply, Accepted) and reply.selected:
            self._check_records(client, request)
        if request.uploads:
            self._drop_input(client)
        return reply

    def _check_records(self, client: Client, invite: Invite) -> None:
        """Leave the round and raise InputError if records are the unit of privacy and this node's records are unusable.

        This is checked at the invitation, because later the data must not decide whether or when the node answers.  At
        the first message of a run, a node that is not simulated computes the gradients of all records, and times those
        of the largest possible sample.
        """
        description, encoding = self._state.description, invite.terms.records
        if not encoding:
            return
        try:
            check_record_ids(self._app.step, description.record if description else "")
            self._app.check_declared(encoding.records)
            if self._is_described and not self._simulated:
                model, clip = self._app.model_vector(), invite.terms.clip
                seconds = rehearse_batches(self._app, model, model.size, clip, encoding, tell_owner=log.error)
                check_room(seconds, self._pins)
        except InputError:
            client.close()
            raise

    def _check_protected(self, mode: str) -> None:
        """Raise ParametersRefused if the node lacks settings of its owner that the protocol's mode requires."""
        check_pinned_or_simulated(mode, self._pins, self._simulated)
        check_time_fixed(mode, self._pins, self._simulated)

    def release(self) -> None:
        """Close the journal of the open round; the next message opens it again."""
        if self._client is not None:
            self._client.stop()

    def _enrol(self, request: Enrol) -> Enrolled:
        self._check_protected(request.mode)
        identity, offered = self._keys.identity(), self._helper_keys if request.helpers else None
        helper = UNSET if offered is None else offered.identity().signing + offered.identity().vrf
        environment, weight = self._environment(), self._pins.weight()
        return Enrolled(identity.signing, identity.vrf, environment, weight, self._simulated, helper)

    def _drop_input(self, client: Client) -> None:
        """Delete the encoded input of the open round from the node's state, once all chunks of it are uploaded."""
        round = client.round
        if round is not None and round.summing is not None and round.summing.uploaded:
            self._state.drop_input(round.invite.round)

    @property
    def _keys(self) -> Keys:
        """Return the keys in the owner's file, or else the keys that this node generated."""
        return self._pins.keys() or self._run.keys()

    @property
    def _helper_keys(self) -> Keys | None:
        """Return the keys of this node as a helper; None if its owner does not offer it as a helper."""
        if self._mod.assists is None:
            return None
        return self._pins.helper_keys() if self._pins.is_pinned else self._run.helper_keys()

    def _build_helper(self) -> AssistedHelper:
        """Return the helper, built from the run description and the owner's settings."""
        keys, description = self._helper_keys, self._state.description
        if keys is None or description is None or self._mod.assists is None:
            raise ParametersRefused("this node is not a helper, or has no description of the run yet")
        registry, store = Registry.from_bytes(description.registry), self._helper_store()
        selection = build_selection(description, registry, self._pins.beacon())
        return build_helper(registry, keys, self._mod.assists, store, description.run, selection.verify_client)

    def _accept_description(self, description: RunDescription) -> DescriptionRead:
        """Check a run description, on a pinned node also against its pins; store it and return the reply."""
        registry, pinned, known = (
            Registry.from_bytes(description.registry),
            self._pins.registry(),
            self._state.description,
        )
        if known is not None:
            check_first_description(description, known, self._simulated)
            check_registry(registry, Registry.from_bytes(known.registry), "of the runs before")
        if pinned is not None:
            check_registry(registry, pinned, "that the owner has pinned")
        check_cohort_pinned(description, self._pins)
        check_has_beacon(find_protocol(description), self._pins.config)
        build_selection(description, registry, self._pins.beacon())
        find_own_id(registry, self._keys)
        if description != known:
            self._state.keep_description(description)
        self._is_described = True
        return DescriptionRead()

    def _build_client(self) -> Client:
        """Return the client, built from the run description and the owner's settings."""
        description = self._state.description
        if description is None:
            raise ProtocolError("the invitation came before the description of the run")
        registry = Registry.from_bytes(description.registry)
        me = find_own_id(registry, self._keys)
        return build_client(
            me,
            self._app,
            find_protocol(description),
            self._pins.policy(self._mod.policy),
            build_selection(description, registry, self._pins.beacon()),
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
            sums_at_opening=True,  # every message has its own process, and sums of records are not stored in between
        )


def find_protocol(description: RunDescription) -> SummingProtocol:
    """Return the summing protocol of a run; raise ParametersRefused if it is unknown or does not hide updates."""
    if description.protocol not in SUMMING or not summing_protocol(description.protocol).hides_updates:
        raise ParametersRefused(
            f"the protocol '{description.protocol}' does not hide updates, or is unknown to this node"
        )
    return summing_protocol(description.protocol)


def build_selection(description: RunDescription, registry: Registry, beacon: Beacon | None) -> Selection:
    """Return the selection of a run; raise ParametersRefused if nodes cannot verify this kind of selection.

    `balanced` schedules clients in an order that follows from run id and registry, and with SecAgg+ from `beacon` too,
    unless `beacon` is None.
    """
    protocol = find_protocol(description)
    known = (BALANCED, UNIFORM) if protocol.has_cohort else (BALANCED, UNIFORM, OPEN)
    if description.selection not in known:
        raise ParametersRefused(
            f"this node cannot verify the selection '{description.selection}': use '{BALANCED}', or '{UNIFORM}' in "
            "the mode semi-honest"
        )
    drawn = protocol.sparse and beacon is not None
    rule = SelectionRule(description.selection, description.per_round, description.least, drawn)
    return rule.selection(registry, description.run, beacon)


def find_own_id(registry: Registry, keys: Keys) -> ClientId:
    """Return the id of the client with these keys; raise ParametersRefused if the registry has no such client."""
    identity = keys.identity()
    for u, registered in registry.items():
        if registered == identity:
            return u
    raise ParametersRefused("the registry of the run does not have the keys of this node")


def build_helper(
    registry: Registry, keys: Keys, policy: HelperPolicy, store: HelperStore, run: bytes, verify_client: VerifyClient
) -> AssistedHelper:
    """Return the helper with these keys in a run; raise ParametersRefused if no helper of the registry has them."""
    identity, signing = keys.identity(), registry.signing_keys()
    for h, registered in registry.helpers.items():
        if registered == identity:
            return AssistedHelper(
                h,
                secret=keys.signing,
                registry=signing,
                store=store,
                policy=policy,
                run=run,
                verify_client=verify_client,
            )
    raise ParametersRefused("the registry of the run does not name this node as a helper")


def check_first_description(description: RunDescription, known: RunDescription, simulated: bool) -> None:
    """Raise ParametersRefused if a description differs from the first description of the Flower run.

    A server that could change the description could choose the selection.  In a simulation, which protects nobody, a
    new run of dordis may have a new description.
    """
    if description != known and not (simulated and description.run != known.run):
        raise ParametersRefused(
            "the run description differs from the first one of this Flower run, which is final: start another Flower "
            "run for another run of dordis"
        )
