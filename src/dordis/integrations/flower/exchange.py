"""Flower's grid as the exchange of a round: one message per node and stage, with the requests of all chunks.

In assisted rounds the train message contains the invitation and the round's parameters; the reply to it contains the
contribution.  The engine asks for contributions by an *open call*: a request that any invited client may answer.

A Flower message takes a second or more, because both sides poll.  So the request `Train` is sent with the invitation.
Except in assisted rounds, the request for the upload is a separate message, so that a client's accusation in the set-up
can end the round before any node has uploaded or counted a participation.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict
from flwr.serverapp import Grid

from dordis import wire
from dordis.errors import CryptoError, DordisError, InputError, MalformedMessage, ProtocolError
from dordis.integrations.flower.messages import RECORD, RunDescription, Sealed, from_record, seal, to_record
from dordis.protocol import ClientId, Garbled, Message, OpenCall, Replies, Requests, Role, reply_to
from dordis.protocols.assisted.messages import AgreeOnSurvivors, Introduce, OpenBoxes, Reveal
from dordis.protocols.assisted.parameters import EpochKeys
from dordis.protocols.parameters import RUN_BYTES
from dordis.protocols.summing import Opening
from dordis.rounds.invitation import Accepted, InvitationServer, Invite, SendModel, Train
from dordis.rounds.watch import MessageMeter

LOG = logging.getLogger("flwr.dordis")
POLL_SECONDS = (0.01, 0.5)
"""The first and the longest pause between two polls for replies, in seconds."""

Bundle = Mapping[ClientId, Sequence[Message]]
RequestKey = tuple[str, int | None]
"""Type name and chunk of a request; the chunk is None if the request is about all chunks."""
Answers = dict[ClientId, dict[RequestKey, Message]]


class NodeLost(ProtocolError):
    """Raised if a node cannot answer: its app failed, or it disconnected."""


class NodeRefused(ProtocolError):
    """Raised if a node refuses a request; the message is the node's reason."""


@dataclass
class GridTransport:
    """Sends one Flower message to each node and waits for the replies."""

    grid: Grid
    message_type: str = "train"

    def send(self, contents: Mapping[int, RecordDict], timeout: float | None) -> dict[int, FlowerMessage]:
        """Send `contents`, by node id; return by node id the replies within `timeout` seconds (None: wait for all)."""
        messages = [FlowerMessage(content, node, self.message_type) for node, content in contents.items()]
        asked = dict(zip(self.grid.push_messages(messages), contents, strict=True))
        asked.pop(None, None)  # Flower returns None as the id of a message that it could not send
        deadline, pause = time.monotonic() + (timeout or float("inf")), POLL_SECONDS[0]
        replies: dict[int, FlowerMessage] = {}
        while True:
            for reply in self.grid.pull_messages(list(asked)):
                node = asked.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = reply
                    pause = POLL_SECONDS[0]
            if not asked or time.monotonic() >= deadline:
                return replies
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, POLL_SECONDS[1])


@dataclass
class TrainMessages:
    """The strategy's train messages of this round: their content, the sampled clients, and the timeout in seconds."""

    content: RecordDict = field(default_factory=RecordDict)
    clients: tuple[ClientId, ...] = ()
    timeout: float | None = None


class HelperRequests:
    """Bundles requests to helpers, because a Flower message takes seconds, and stores helpers' keys for coming rounds.

    One message to a helper asks for two things: to open the clients' boxes, which are encrypted seeds of masks, and to
    send its keys for coming rounds.  A node has a new process for every message and stores no opened seeds, so later
    requests repeat the boxes.
    """

    def __init__(self) -> None:
        self._shown: dict[ClientId, tuple[bytes, EpochKeys]] = {}
        self._round, self._boxes = b"", dict[ClientId, list[Message]]()

    def known_replies(self, requests: Requests) -> dict[ClientId, Message]:
        """Return the replies to `requests` if they all ask for keys that are known already; otherwise no replies."""
        known = {h: keys for h, request in requests.items() if (keys := self._known_keys(h, request)) is not None}
        return dict(known) if len(known) == len(requests) else {}

    def _known_keys(self, helper: ClientId, request: Message) -> EpochKeys | None:
        run, keys = self._shown.get(helper, (b"", None))
        if not isinstance(request, Introduce) or keys is None or request.round[:RUN_BYTES] != run:
            return None
        index = int.from_bytes(request.round[RUN_BYTES:], "big")
        return keys if any(key.first <= index <= key.last for key in keys.keys.values()) else None

    def bundle(self, helper: ClientId, request: Message) -> tuple[Message, ...]:
        """Return the messages to send to a helper: the request, preceded by messages that the helper needs for it."""
        if isinstance(request, OpenBoxes):
            if self._round != request.parameters.round:
                self._round, self._boxes = request.parameters.round, {}
            opened = self._boxes.setdefault(helper, [])
            opened.append(request)
            return (Introduce(self._round), request) if len(opened) == 1 else (request,)
        if isinstance(request, AgreeOnSurvivors | Reveal):
            return *self._boxes.get(helper, ()), request
        return (request,)

    def note_keys(self, helper: ClientId, request: Message, reply: Message) -> None:
        """Store the public keys in a helper's reply, if the request was for keys."""
        if isinstance(request, Introduce) and isinstance(reply, EpochKeys):
            self._shown[helper] = request.round[:RUN_BYTES], reply


class FlowerExchange(MessageMeter):
    """Sends the requests of a round to nodes; concurrent requests for several chunks become one message per node.

    With records as the unit of privacy, a node trains when it receives the round's parameters.  Therefore the contents
    of the strategy's train message are sent a second time, together with the parameters.

    `nodes` and `helpers` have the node ids of clients and helpers.  A node has `patience` seconds to answer at every
    stage after the training.  `by_record` tells whether records are the unit of privacy.
    """

    def __init__(
        self,
        transport: GridTransport,
        nodes: Mapping[ClientId, int],
        description: RunDescription,
        training: TrainMessages,
        patience: float,
        helpers: Mapping[ClientId, int] | None = None,
        by_record: bool = False,
    ) -> None:
        super().__init__()
        self._training_requests = (Invite, Opening) if by_record else (Invite,)
        self._transport, self._nodes, self._description = transport, nodes, description
        self._training, self._patience = training, patience
        self._helpers, self._helper_requests = helpers or {}, HelperRequests()
        self.invited: tuple[ClientId, ...] = ()
        """The clients that are asked to contribute, if the protocol has no fixed list of clients; otherwise empty."""
        self._ahead: Answers = {}
        self._asked_ahead: set[RequestKey] = set()
        self._informed: set[int] = set()
        """Nodes that have received the description of the run."""
        self._waiting: list[Requests] = []
        self._delivery: asyncio.Task[Answers]

    async def __call__(self, requests: Requests) -> Replies:
        """Return the replies to requests; requests of concurrent calls, for several chunks, are sent together."""
        if isinstance(requests, OpenCall):
            return self._take_contributions(requests)
        if any(request.role is Role.HELPER for request in requests.values()):
            return self._ask_helpers(requests)
        if not self._waiting:
            self._delivery = asyncio.create_task(self._flush())
        self._waiting.append(requests)
        answers = await self._delivery
        found = {u: answers.get(u, {}).get(request_key(request)) for u, request in requests.items()}
        return [(u, reply) for u, reply in found.items() if reply is not None]

    async def _flush(self) -> Answers:
        waiting, self._waiting = self._waiting, []
        return self._deliver(waiting)

    def _deliver(self, waiting: Sequence[Requests]) -> Answers:
        """Send the waiting requests, one message for each node, and return the answers of every client.

        If all these requests were sent ahead with the previous message, send nothing, and return the answers to that.
        """
        bundle: dict[ClientId, list[Message]] = {}
        for requests in waiting:
            for u, request in requests.items():
                if not request.ahead:
                    bundle.setdefault(u, []).append(request)
        places = {request_key(request) for asked in bundle.values() for request in asked}
        if not places <= self._asked_ahead:  # else all were sent ahead: a node that did not answer is not asked again
            following = {u: following_requests(asked[-1]) for u, asked in bundle.items()}
            self._asked_ahead = {request_key(request) for more in following.values() for request in more}
            self._ahead = self._send({u: (*asked, *following[u]) for u, asked in bundle.items()})
        return self._ahead

    def _send(self, bundle: Bundle) -> Answers:
        contents, frames = {}, {}
        for u, asked in bundle.items():
            content, first = RecordDict(), []
            if isinstance(asked[0], self._training_requests):
                content = RecordDict(dict(self._training.content))
            if isinstance(asked[0], Invite):
                first = [] if self._nodes[u] in self._informed else [self._description]
            frames[u] = (*first, *asked)
            sealed = [seal(message) for message in frames[u]]
            content[RECORD] = to_record(sealed)
            contents[self._nodes[u]] = content
            self._meter(u, content, sealed)
        trains = any(isinstance(asked[0], self._training_requests) for asked in bundle.values())
        replies = self._transport.send(contents, self._training.timeout if trains else self._patience)
        return {u: self._answers(u, frames[u], replies[self._nodes[u]]) for u in bundle if self._nodes[u] in replies}

    def _take_contributions(self, call: OpenCall) -> Replies:
        """Send invitation and parameters to the invited clients; return the contributions admitted by the open call."""
        coming = [u for u in self.invited if u not in call.arrived][: call.most - len(call.arrived)]
        answers = self._send({u: (_invite(call, u), Train(), call.request) for u in coming})
        admitted = []
        for u, given in answers.items():
            accepted, reply = given.get((Invite.__name__, None)), given.get(request_key(call.request))
            if not isinstance(accepted, Accepted) or not accepted.selected or reply is None:
                continue
            try:
                call.admit(u, reply)
            except (ProtocolError, CryptoError, InputError) as error:
                LOG.warning("node %d, client %d: %s", self._nodes[u], u, error)
                self.errors.append((u, error))
            else:
                admitted.append((u, reply))
        return admitted

    def _ask_helpers(self, requests: Requests) -> Replies:
        """Return the replies of helpers: from memory if only known public keys are requested, else after sending."""
        known = self._helper_requests.known_replies(requests)
        if known:
            return list(known.items())
        contents, asked = {}, {}
        for h, request in requests.items():
            first = () if self._helpers[h] in self._informed else (self._description,)
            asked[h] = (*first, *self._helper_requests.bundle(h, request))
            contents[self._helpers[h]] = RecordDict({RECORD: to_record([seal(message) for message in asked[h]])})
        replies = self._transport.send(contents, self._patience)
        answers = {
            h: self._helper_answer(h, asked[h], replies[self._helpers[h]]) for h in asked if self._helpers[h] in replies
        }
        return [(h, answer) for h, answer in answers.items() if answer is not None]

    def _helper_answer(self, h: ClientId, asked: Sequence[Message], reply: FlowerMessage) -> Message | None:
        """Return the answer of helper `h` to the last request in `asked`; store public keys that the `reply` contains.

        Flower's `reply` has the answers to all requests in `asked`.  Return `Garbled` if `reply` or an answer is
        malformed, and None if `reply` is an error or lacks an answer.
        """
        try:
            sealed, refusal = open_reply(reply)
            if refusal or len(sealed) != len(asked):
                raise NodeRefused(refusal or "the helper did not answer all that it was asked")
            for request, (frame, bulk) in zip(asked, sealed, strict=True):
                answer = wire.decode(frame, reply_to(request), bulk=bulk)
                self._helper_requests.note_keys(h, request, answer)
            self._informed.add(self._helpers[h])
            return answer
        except DordisError as error:
            LOG.warning("node %d, helper %d: %s", self._helpers[h], h, error)
            return Garbled() if isinstance(error, MalformedMessage) else None

    def _meter(self, u: ClientId, content: RecordDict, sealed: Sequence[Sealed]) -> None:
        model = sum(record.count_bytes() for record in content.array_records.values())
        self.count_request(u, SendModel, model)
        self.received[u] += sum(len(frame) + len(bulk) for frame, bulk in sealed)

    def _answers(self, u: ClientId, asked: Sequence[Message], reply: FlowerMessage) -> dict[RequestKey, Message]:
        """Return a client's answers to the requests in `asked`, keyed by request; unanswered requests have no entry.

        A client stops answering when it refuses a request; the refusal is stored in `errors`, and is no answer.  If an
        answer is malformed, it and all later ones are `Garbled`.
        """
        answers: dict[RequestKey, Message] = {}
        try:
            sealed, refusal = open_reply(reply)
            for request, (frame, bulk) in zip(asked, sealed, strict=False):
                answers[request_key(request)] = wire.decode(frame, reply_to(request), bulk=bulk)
                self.count_reply(u, len(frame) + len(bulk))
            self._informed.add(self._nodes[u])
            if refusal:
                raise NodeRefused(refusal)
        except DordisError as error:
            LOG.warning("node %d, client %d: %s", self._nodes[u], u, error)
            if isinstance(error, MalformedMessage):
                answers |= blame_garbage(asked, answers)
            if not isinstance(error, NodeLost):
                self.errors.append((u, error))
        return answers


def _invite(call: OpenCall, client: ClientId) -> Invite:
    """Return the invitation that an open call has for a client; raise InputError if the call has no invitation."""
    visited = None if call.visit is None else call.visit(client)
    if not isinstance(visited, InvitationServer):
        raise InputError("an open call needs the invitation for arriving clients")
    return visited.invitation.invite


def following_requests(request: Message) -> Sequence[Message]:
    """Return the requests to send together with `request`: `Train` after an invitation, without awaiting its answer."""
    return (Train(),) if isinstance(request, Invite) else ()


def blame_garbage(asked: Sequence[Message], answers: Mapping[RequestKey, Message]) -> dict[RequestKey, Message]:
    """Return `Garbled` for each request that `answers` lacks, and nothing else, so that the node counts as a liar."""
    return {request_key(request): Garbled() for request in asked if request_key(request) not in answers}


def open_reply(reply: FlowerMessage) -> tuple[list[Sealed], str]:
    """Return the messages in a node's reply, and the node's reason for a refusal (empty if it refused nothing).

    Raise NodeLost if the reply is an error of Flower, MalformedMessage if dordis did not write it.
    """
    if reply.has_error():
        raise NodeLost((reply.error.reason or "the node gives no reason").strip().splitlines()[-1])
    if RECORD not in reply.content.config_records:
        raise MalformedMessage("the node answered, but not as dordis does: is dordis_mod on its ClientApp?")
    return from_record(reply.content)


def request_key(request: Message) -> RequestKey:
    """Return the type name of a request and its chunk; the chunk is None if the request has no field `chunk`."""
    return type(request).__name__, getattr(request, "chunk", None)
