"""Flower's grid as the exchange of a round: one message per node and stage, with the requests of all chunks.

A message of Flower takes a second or more, because both sides poll for messages.  So `Train` travels with the
invitation.  The request for the upload is a message of its own: an accusation in the set-up ends the round before any
node has uploaded or counted a participation.
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
from dordis.errors import DordisError, MalformedMessage, ProtocolError
from dordis.integrations.flower.messages import RECORD, RunDescription, Sealed, from_record, seal, to_record
from dordis.protocol import ClientId, Garbled, Message, Replies, Requests, reply_to
from dordis.rounds.invitation import Invite, SendModel, Train
from dordis.rounds.meter import MessageMeter

LOG = logging.getLogger("flwr.dordis")
POLL_SECONDS = (0.01, 0.5)
"""Pause between two polls for replies: the first, and the longest."""

Bundle = Mapping[ClientId, Sequence[Message]]
RequestKey = tuple[str, int | None]
"""Kind and chunk of a request."""
Answers = dict[ClientId, dict[RequestKey, Message]]


class NodeLost(ProtocolError):
    """A node cannot answer: its app failed, or it disconnected."""


class NodeRefused(ProtocolError):
    """A node refuses to answer and says why."""


@dataclass
class GridTransport:
    """Send a message to each node and wait for the replies."""

    grid: Grid
    message_type: str = "train"

    def send(self, contents: Mapping[int, RecordDict], timeout: float | None) -> dict[int, FlowerMessage]:
        """Return the replies that arrive before the timeout, by node."""
        messages = [FlowerMessage(content, node, self.message_type) for node, content in contents.items()]
        asked = dict(zip(self.grid.push_messages(messages), contents, strict=True))
        asked.pop(None, None)  # messages that could not be sent
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
    """The strategy's train messages of this round: their records, sampled clients, and timeout in seconds."""

    content: RecordDict = field(default_factory=RecordDict)
    clients: tuple[ClientId, ...] = ()
    timeout: float | None = None


class FlowerExchange(MessageMeter):
    """Deliver the requests of a round to nodes; concurrent calls for several chunks become one message per node."""

    def __init__(
        self,
        transport: GridTransport,
        nodes: Mapping[ClientId, int],
        description: RunDescription,
        training: TrainMessages,
        patience: float,
    ) -> None:
        super().__init__()
        self._transport, self._nodes, self._description = transport, nodes, description
        self._training, self._patience = training, patience
        self._ahead: Answers = {}
        self._asked_ahead: set[RequestKey] = set()
        self._informed: set[ClientId] = set()
        self._waiting: list[Requests] = []
        self._delivery: asyncio.Task[Answers]

    async def __call__(self, requests: Requests) -> Replies:
        """Deliver requests together with all others of this turn of the event loop."""
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
        """Return the answers to requests, including those that came with earlier replies."""
        bundle: dict[ClientId, list[Message]] = {}
        for requests in waiting:
            for u, request in requests.items():
                if not request.ahead:
                    bundle.setdefault(u, []).append(request)
        places = {request_key(request) for asked in bundle.values() for request in asked}
        if not places <= self._asked_ahead:  # a node that did not answer then is not asked again
            following = {u: following_requests(asked[-1]) for u, asked in bundle.items()}
            self._asked_ahead = {request_key(request) for more in following.values() for request in more}
            self._ahead = self._send({u: (*asked, *following[u]) for u, asked in bundle.items()})
        return self._ahead

    def _send(self, bundle: Bundle) -> Answers:
        contents, frames = {}, {}
        for u, asked in bundle.items():
            content, first = RecordDict(), []
            if isinstance(asked[0], Invite):
                content = RecordDict(dict(self._training.content))
                first = [] if u in self._informed else [self._description]
            frames[u] = (*first, *asked)
            sealed = [seal(message) for message in frames[u]]
            content[RECORD] = to_record(sealed)
            contents[self._nodes[u]] = content
            self._meter(u, content, sealed)
        trains = any(isinstance(asked[0], Invite) for asked in bundle.values())
        replies = self._transport.send(contents, self._training.timeout if trains else self._patience)
        return {u: self._answers(u, frames[u], replies[self._nodes[u]]) for u in bundle if self._nodes[u] in replies}

    def _meter(self, u: ClientId, content: RecordDict, sealed: Sequence[Sealed]) -> None:
        model = sum(record.count_bytes() for record in content.array_records.values())
        self.count_request(u, SendModel, model)
        self.received[u] += sum(len(frame) + len(bulk) for frame, bulk in sealed)

    def _answers(self, u: ClientId, asked: Sequence[Message], reply: FlowerMessage) -> dict[RequestKey, Message]:
        """Read a reply: the answers up to the first request that was refused or answered with garbage."""
        answers: dict[RequestKey, Message] = {}
        try:
            sealed, refusal = open_reply(reply)
            for request, (frame, bulk) in zip(asked, sealed, strict=False):
                answers[request_key(request)] = wire.decode(frame, reply_to(request), bulk=bulk)
                self.count_reply(u, len(frame) + len(bulk))
            self._informed.add(u)
            if refusal:
                raise NodeRefused(refusal)
        except DordisError as error:
            LOG.warning("node %d, client %d: %s", self._nodes[u], u, error)
            if isinstance(error, MalformedMessage):
                answers |= blame_garbage(asked, answers)
            if not isinstance(error, NodeLost):
                self.errors.append((u, error))
        return answers


def following_requests(request: Message) -> Sequence[Message]:
    """Return the requests that follow independently of the answers."""
    return (Train(),) if isinstance(request, Invite) else ()


def blame_garbage(asked: Sequence[Message], answers: Mapping[RequestKey, Message]) -> dict[RequestKey, Message]:
    """Return a garbled answer for every unanswered request of a node that sent garbage, so that it is named."""
    return {request_key(request): Garbled() for request in asked if request_key(request) not in answers}


def open_reply(reply: FlowerMessage) -> tuple[list[Sealed], str]:
    """Return the messages in a reply, and the reason if the node refused a request."""
    if reply.has_error():
        raise NodeLost((reply.error.reason or "the node gives no reason").strip().splitlines()[-1])
    if RECORD not in reply.content.config_records:
        raise MalformedMessage("the node answered, but not as dordis does: is dordis_mod on its ClientApp?")
    return from_record(reply.content)


def request_key(request: Message) -> RequestKey:
    """Return kind and chunk of a request."""
    return type(request).__name__, getattr(request, "chunk", None)
