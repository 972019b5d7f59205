"""Flower apps for tests: a train function with known updates, nodes that vanish at a request, and a grid in memory."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from dordis.identity.certificates import new_tls_key
from dordis.identity.keys import Keys, PrivateKeys, save_keys
from dordis.identity.registry import Registry
from dordis.integrations.flower.messages import RECORD, from_record
from dordis.integrations.flower.pins import COHORT, KEYS, REGISTRY, STATE, TRAIN_SECONDS
from dordis.owner.policy import Policy
from dordis.protocol import ClientId

SHAPES = {"weight": (4, 5), "bias": (4,)}
DIM = 24
SECRET = 271828
"""A metric of every client that nobody but its node may see."""
NO_NOISE = Policy(mechanisms=frozenset({"none"}), schemes=frozenset({"none"}), without_guarantee=True)


def model(value: float = 1.0) -> ArrayRecord:
    """Return a model of two arrays and a counter."""
    arrays = {name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()}
    return record_of(arrays | {"steps": np.array(7)})


def record_of(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Return arrays as Flower has them."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def update(place: int) -> np.ndarray:
    """Return the update of the client at a place: short enough not to be clipped."""
    drawn = np.random.default_rng(place).normal(size=DIM)
    return (0.9 * drawn / np.linalg.norm(drawn)).astype(np.float32)


def client_app(mods: list[Any]) -> ClientApp:
    """Return an app whose nodes add their update to the model."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        change, first = update(int(context.node_config["partition-id"])), 0
        for name, shape in SHAPES.items():
            size = int(np.prod(shape))
            arrays[name] = arrays[name] + change[first : first + size].reshape(shape)
            first += size
        metrics = MetricRecord({"num-examples": 3, "loss": float(SECRET)})
        return Message(RecordDict({"arrays": record_of(arrays), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 3, "loss": float(SECRET)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def vector(record: ArrayRecord) -> np.ndarray:
    """Return the real numbers of a model in a row."""
    return np.concatenate([record[name].numpy().ravel() for name in SHAPES])


def vanish(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A mod: the first nodes leave the round at the request that the train message names, the next at another."""
    for name, record in message.content.config_records.items():
        if name != RECORD and "lose-at" in record:
            context.state["vanish"] = record
    plan: Mapping[str, Any] = context.state.get("vanish", {"lose-at": "", "lost": 0})
    place = int(context.node_config["partition-id"])
    stage = plan["lose-at"] if place < plan["lost"] else plan.get("at") if place == plan["lost"] else None
    if stage and RECORD in message.content.config_records:
        frames, _ = from_record(message.content)
        if stage in [msgspec.msgpack.decode(frame[1:])["type"] for frame, _ in frames]:
            raise ConnectionError("the node has gone")
    return call_next(message, context)


def pin(folder: Path, clients: int, **more: Any) -> tuple[Registry, dict[int, dict[str, Any]]]:
    """Write what owners pin their nodes with: key files, a registry, a directory; return it and their settings."""
    keys = {ClientId(u): Keys.generate() for u in range(1, clients + 1)}
    registry, config = Registry({u: own.identity() for u, own in keys.items()}), {}
    registry.save(folder / "registry.json")
    for place, (u, own) in enumerate(keys.items()):
        save_keys(folder / f"{u}.key", PrivateKeys(new_tls_key(), own))
        files = {KEYS: f"{u}.key", REGISTRY: "registry.json", STATE: "state"}
        config[place] = (
            {name: str(folder / file) for name, file in files.items()} | {COHORT: clients, TRAIN_SECONDS: 1} | more
        )
    return registry, config


class MemoryGrid(Grid):
    """Nodes in this process; contents and states go through Flower's encoding, as they do between processes.

    Nodes that `forget` are stopped after every reply, before Flower has stored what the app left in their context.
    """

    def __init__(
        self,
        apps: list[ClientApp],
        config: Mapping[int, dict[str, Any]] | None = None,
        *,
        run: int = 1,
        run_config: Callable[[int], dict[str, Any]] = lambda place: {},
        forget: bool = False,
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.node_id = 1  # a process of Flower's has them
        TaskIdentity.run_id, self._forget = run, forget
        places = {2**63 + 1000 * place: place for place in range(len(apps))}
        self._apps = dict(zip(places, apps, strict=True))
        self.contexts = {
            node: Context(
                run, node, {"partition-id": place, **(config or {}).get(place, {})}, RecordDict(), run_config(place)
            )
            for node, place in places.items()
        }
        self._replies: dict[str, Message] = {}
        self.trips = 0
        self.seen: list[bytes] = []
        """Everything that left a node."""

    run: Any = None

    def set_run(self, run: Any) -> None:
        """Take note of nothing."""

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        """Make a message."""
        return Message(*arguments, **options)

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes."""
        return list(self._apps)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages at once."""
        self.trips += 1
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        name = message.metadata.__dict__["_message_id"] = str(uuid4())
        context = self.contexts[message.metadata.dst_node_id]
        context.state = RecordDict() if self._forget else carried(context.state)
        place = int(context.node_config["partition-id"])
        received = Message(self.carry(place, carried(message.content)), metadata=message.metadata)
        try:
            reply = self._apps[context.node_id](received, context)
        except Exception as error:  # noqa: BLE001  as Flower does
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=received)
        if reply.has_content():
            self.seen.append(recorddict_to_proto(reply.content).SerializeToString())
        self._replies[name] = reply
        return name

    def carry(self, place: int, content: RecordDict) -> RecordDict:
        """Return what the node at a place gets of a message: a SuperLink that deviates may change it."""
        return content

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Deliver messages and return the replies."""
        return self.pull_messages(self.push_messages(messages))


def carried(record: RecordDict) -> RecordDict:
    """Return a record as it arrives, through the encoding of Flower."""
    return recorddict_from_proto(recorddict_to_proto(record))
