"""Flower's grid as the exchange of a round: one message a node and stage, with the requests of all chunks in it.

A trip of Flower takes a second or more, because both sides look for messages from time to time.  So `Train` travels
with the invitation.  The request for the upload does not travel with the last one of the set-up: an accusation there
ends the round, and then nobody has uploaded or counted a participation.
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
from dordis.integrations.flower.messages import RECORD, Charter, Sealed, from_record, seal, to_record
from dordis.protocol import ClientId, Garbled, Message, Replies, Requests, reply_to
from dordis.rounds.invitation import Invite, SendModel, Train
from dordis.rounds.meter import MessageMeter

LOG = logging.getLogger("dordis.flower")
LOOK_AGAIN = (0.01, 0.5)
"""Seconds between two looks for replies: at first, and at most."""

Bundle = Mapping[ClientId, Sequence[Message]]
Place = tuple[str, int | None]
"""Where a request belongs in a round: its kind and its chunk."""
Answers = dict[ClientId, dict[Place, Message]]


class NodeLost(ProtocolError):
    """A node cannot answer: its app failed, or it has gone."""


class NodeRefused(ProtocolError):
    """A node does not answer, for a reason that it gives."""


@dataclass
class Post:
    """Send messages to nodes and wait for what comes back, node by node."""

    grid: Grid
    message_type: str = "train"

    def send(self, contents: Mapping[int, RecordDict], timeout: float | None) -> dict[int, FlowerMessage]:
        """Return the replies that came in time, by the node that was asked: replies are known by message id."""
        messages = [FlowerMessage(content, node, self.message_type) for node, content in contents.items()]
        asked = dict(zip(self.grid.push_messages(messages), contents, strict=True))
        asked.pop(None, None)  # what could not be sent
        deadline, pause = time.monotonic() + (timeout or float("inf")), LOOK_AGAIN[0]
        replies: dict[int, FlowerMessage] = {}
        while True:
            for reply in self.grid.pull_messages(list(asked)):
                node = asked.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = reply
                    pause = LOOK_AGAIN[0]
            if not asked or time.monotonic() >= deadline:
                return replies
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, LOOK_AGAIN[1])


@dataclass
class Assignment:
    """Train message of this round: its records, the clients that the strategy sampled, and its timeout in seconds."""

    content: RecordDict = field(default_factory=RecordDict)
    clients: tuple[ClientId, ...] = ()
    timeout: float | None = None


class FlowerExchange(MessageMeter):
    """Deliver the requests of a round to nodes; calls for several chunks at once go out as one message a node."""

    def __init__(
        self,
        post: Post,
        nodes: Mapping[ClientId, int],
        charter: Charter,
        training: Assignment,
        patience: float,
    ) -> None:
        super().__init__()
        self._post, self._nodes, self._charter = post, nodes, charter
        self._training, self._patience = training, patience
        self._ahead: Answers = {}
        self._asked_ahead: set[Place] = set()
        self._informed: set[ClientId] = set()
        self._waiting: list[Requests] = []
        self._delivery: asyncio.Task[Answers]

    async def __call__(self, requests: Requests) -> Replies:
        """Deliver requests together with all others that are made before the event loop turns."""
        if not self._waiting:
            self._delivery = asyncio.create_task(self._flush())
        self._waiting.append(requests)
        answers = await self._delivery
        found = {u: answers.get(u, {}).get(place_of(request)) for u, request in requests.items()}
        return [(u, reply) for u, reply in found.items() if reply is not None]

    async def _flush(self) -> Answers:
        waiting, self._waiting = self._waiting, []
        return self._deliver(waiting)

    def _deliver(self, waiting: Sequence[Requests]) -> Answers:
        """Return the answers to requests, those that came ahead of time among them."""
        bundle: dict[ClientId, list[Message]] = {}
        for requests in waiting:
            for u, request in requests.items():
                if not request.ahead:
                    bundle.setdefault(u, []).append(request)
        places = {place_of(request) for asked in bundle.values() for request in asked}
        if not places <= self._asked_ahead:  # who did not answer ahead of time is not asked again
            following = {u: following_requests(asked[-1]) for u, asked in bundle.items()}
            self._asked_ahead = {place_of(request) for more in following.values() for request in more}
            self._ahead = self._sent({u: (*asked, *following[u]) for u, asked in bundle.items()})
        return self._ahead

    def _sent(self, bundle: Bundle) -> Answers:
        contents, frames = {}, {}
        for u, asked in bundle.items():
            content, first = RecordDict(), []
            if isinstance(asked[0], Invite):
                content = RecordDict(dict(self._training.content))
                first = [] if u in self._informed else [self._charter]
            frames[u] = (*first, *asked)
            sealed = [seal(message) for message in frames[u]]
            content[RECORD] = to_record(sealed)
            contents[self._nodes[u]] = content
            self._meter(u, content, sealed)
        trains = any(isinstance(asked[0], Invite) for asked in bundle.values())
        replies = self._post.send(contents, self._training.timeout if trains else self._patience)
        return {u: self._answers(u, frames[u], replies[self._nodes[u]]) for u in bundle if self._nodes[u] in replies}

    def _meter(self, u: ClientId, content: RecordDict, sealed: Sequence[Sealed]) -> None:
        model = sum(record.count_bytes() for record in content.array_records.values())
        self.count_request(u, SendModel, model)
        self.received[u] += sum(len(frame) + len(bulk) for frame, bulk in sealed)

    def _answers(self, u: ClientId, asked: Sequence[Message], reply: FlowerMessage) -> dict[Place, Message]:
        """Read a reply: the answers up to the first request that was refused or answered with garbage."""
        answers: dict[Place, Message] = {}
        try:
            sealed, refusal = opened(reply)
            for request, (frame, bulk) in zip(asked, sealed, strict=False):
                answers[place_of(request)] = wire.decode(frame, reply_to(request), bulk=bulk)
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


def blame_garbage(asked: Sequence[Message], answers: Mapping[Place, Message]) -> dict[Place, Message]:
    """Return a garbled answer for every unanswered request of a node that sent garbage, so that it is named."""
    return {place_of(request): Garbled() for request in asked if place_of(request) not in answers}


def opened(reply: FlowerMessage) -> tuple[list[Sealed], str]:
    """Return the messages in a reply, and why there are not more."""
    if reply.has_error():
        raise NodeLost((reply.error.reason or "the node gives no reason").strip().splitlines()[-1])
    if RECORD not in reply.content.config_records:
        raise MalformedMessage("the node answered, but not as dordis does: is dordis_mod on its ClientApp?")
    return from_record(reply.content)


def place_of(request: Message) -> Place:
    """Return where a request belongs in a round."""
    return type(request).__name__, getattr(request, "chunk", None)
