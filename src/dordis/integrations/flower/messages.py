"""Messages of dordis inside Flower messages, the arrays of the model, and the digest of data received for training.

The digest covers all data that a node receives for training: the records of the train message (except the record that
dordis adds), the message type and group, the run id, the run config and the name of the app bundle.  A server that
sends one node different data could isolate that node's update.  Therefore the parameters of a round contain the digest,
masks depend on the hash of the parameters, and a node refuses parameters with another digest than that of its own data.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common.constant import APP_DIR
from flwr.supercore.utils import get_flwr_home
from msgspec import UNSET, UnsetType

from dordis import wire
from dordis.errors import InputError, MalformedMessage, ParametersRefused
from dordis.privacy.scaling import Floats
from dordis.protocol import ENCODER, Message
from dordis.rounds.invitation import Invite
from dordis.rounds.model import ModelBytes

RECORD = "dordis"
"""Name of the record in a Flower message that contains messages of dordis."""
MOST = 4096
"""Largest number of dordis messages in one Flower message."""

Sealed = tuple[bytes, wire.Bulk]
"""An encoded message: its frame, and its bulk, the long vectors beside the frame."""


class Enrolled(Message, frozen=True):
    """The reply to `Enrol`: the public keys of a node, and the public weight of its updates."""

    signing: bytes
    vrf: bytes
    environment: bytes
    """Digest of this node's run config and app bundle."""
    weight: float = 1.0
    simulated: bool = False
    """Whether this node belongs to Flower's simulation engine."""
    helper: bytes | UnsetType = UNSET
    """Public keys of the node as a helper, for signatures and VRF; left out by a node that does not offer to help."""


class Enrol(Message, frozen=True):
    """A request for the public keys of a node, for a run in this `mode`; the node answers without reading its data."""

    reply: ClassVar = Enrolled
    mode: str
    helpers: bool | UnsetType = UNSET
    """Whether the run needs helpers; left out if it does not."""


class DescriptionRead(Message, frozen=True, tag="CharterRead"):
    """The reply to `RunDescription`: the node has checked and stored the description."""


class RunDescription(Message, frozen=True, tag="Charter"):
    """Registry, protocol, selection and cohort sizes of a run, sent before the first invitation.

    The first description of a Flower run is final.  A pinned node compares the registry and, with `balanced` selection,
    `per_round` (number of scheduled clients) and `least` (least cohort) with its pins.
    """

    reply: ClassVar = DescriptionRead
    run: bytes
    registry: bytes
    """The registry, as `Registry.to_bytes` encodes it."""
    protocol: str
    selection: str
    per_round: int
    least: int
    record: str = ""
    """The setting `privacy.record`: a column of ids; all rows with the same id are one record.  Empty if not set."""


def check_weight(weight: float) -> None:
    """Raise InputError unless the weight of a node's updates is above 0 and at most 1."""
    if not 0.0 < weight <= 1.0:
        raise InputError(f"the weight of a node is above 0 and at most 1, not {weight:g}: set dordis-weight")


def seal(message: Message) -> Sealed:
    """Return a message, encoded as frame and bulk."""
    return wire.encode(message), wire.bulk_of(message)


def to_record(sealed: Sequence[Sealed], refusal: str = "") -> ConfigRecord:
    """Return a Flower record of these messages; `refusal` is the reason if a request was refused, else empty."""
    values: dict[str, Any] = {"count": len(sealed), "refusal": refusal}
    for place, (frame, bulk) in enumerate(sealed):
        values[f"{place}"] = frame
        if len(bulk):
            values[f"{place}-bulk"] = bytes(bulk)
    return ConfigRecord(values)


def from_record(content: RecordDict) -> tuple[list[Sealed], str]:
    """Return the encoded messages in an untrusted peer's record, and its reason for a refusal (empty if none).

    Raise MalformedMessage if dordis did not write the record.
    """
    record = content.config_records[RECORD]
    count, refusal = record.get("count"), record.get("refusal", "")
    if not isinstance(count, int) or not 0 <= count <= MOST or not isinstance(refusal, str):
        raise MalformedMessage("this is not a record of dordis")
    sealed = [(record.get(f"{place}"), record.get(f"{place}-bulk", b"")) for place in range(count)]
    if not all(isinstance(part, bytes) for message in sealed for part in message):
        raise MalformedMessage("this is not a record of dordis")
    return sealed, refusal


@dataclass(frozen=True)
class Layout:
    """The arrays of a model, by name: `shapes` of the floating-point arrays, which are summed; `types` of all."""

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]

    @classmethod
    def from_record(cls, record: ArrayRecord) -> "Layout":
        """Return the layout of a model; raise InputError if it has no array of floating-point numbers."""
        shapes = {name: tuple(array.shape) for name, array in record.items() if _is_real(array)}
        if not shapes:
            raise InputError("the train message holds no array of floating-point numbers: there is nothing to sum")
        return cls(shapes, {name: array.dtype for name, array in record.items()})

    @property
    def dim(self) -> int:
        """Return the number of coordinates of all arrays that are summed."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def to_vector(self, record: ArrayRecord) -> Floats:
        """Return the summed arrays of a record as one vector; raise InputError if names or shapes differ."""
        if not self.shapes.keys() <= record.keys():
            raise InputError("the arrays of the reply are not named like those of the model")
        arrays = {name: record[name].numpy() for name in self.shapes}
        for name, array in arrays.items():
            if array.shape != self.shapes[name]:
                raise InputError(
                    f"the array '{name}' has the shape {array.shape}, that of the model {self.shapes[name]}"
                )
        kind = np.result_type(np.float32, *(array.dtype for array in arrays.values()))
        return np.concatenate([np.ravel(array).astype(kind, copy=False) for array in arrays.values()])

    def cast(self, model: ArrayRecord) -> ArrayRecord:
        """Return a model in the number types of the first round, because a strategy may average in other types."""
        if model.keys() != self.types.keys():
            raise InputError("the arrays of the model are not named like those of the first round")
        if all(array.dtype == self.types[name] for name, array in model.items()):
            return model
        return ArrayRecord({name: Array(_cast(array.numpy(), self.types[name])) for name, array in model.items()})

    def to_record(self, model: ArrayRecord, vector: Floats) -> ArrayRecord:
        """Return a model whose summed arrays have the numbers of a vector, and whose other arrays are unchanged."""
        arrays, first = {}, 0
        for name, array in model.items():
            if name not in self.shapes:
                arrays[name] = array
                continue
            size = int(np.prod(self.shapes[name]))
            values = vector[first : first + size].reshape(self.shapes[name])
            arrays[name] = Array(np.ascontiguousarray(values, np.dtype(array.dtype)))
            first += size
        return ArrayRecord(arrays)


def find_model(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return name and content of the one ArrayRecord in a message; raise InputError if there are none or several."""
    records = content.array_records
    if len(records) != 1:
        raise InputError(f"a train message and its reply hold one ArrayRecord, not {len(records)}")
    name: str = next(iter(records))
    return name, records[name]


def _cast(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Return an array in another number type; for integer types the numbers are rounded."""
    whole = not np.issubdtype(np.dtype(dtype), np.floating)
    return np.asarray(np.rint(array) if whole else array).astype(dtype)


def _is_real(array: Any) -> bool:
    return bool(np.issubdtype(np.dtype(array.dtype), np.floating))


TRAIN = "train"


def digest_content(content: RecordDict) -> bytes:
    """Return the SHA-256 hash of all records of a message in their order, except the record of dordis."""
    hashed = hashlib.sha256(b"dordis/v1/flower-content")
    for name, record in content.items():
        if name != RECORD:
            hashed.update(hashlib.sha256(ENCODER.encode((type(record).__name__, name, _entries(record)))).digest())
    return hashed.digest()


def _entries(record: Any) -> list[Any]:
    if not isinstance(record, ArrayRecord):
        return list(record.items())
    return [
        (name, array.dtype, list(array.shape), array.stype, hashlib.sha256(array.data).digest())
        for name, array in record.items()
    ]


def digest_environment(context: Context) -> bytes:
    """Return the hash of run id, run config and app bundle of a node."""
    given = (context.run_id, sorted(context.run_config.items()), bundle_name(sys.path))
    return hashlib.sha256(b"dordis/v1/flower-environment" + ENCODER.encode(given)).digest()


def bundle_name(path: Iterable[str]) -> str:
    """Return the directory name of the installed app bundle, which ends with the bundle's hash; empty without a bundle.

    Flower installs a bundle in the directory publisher.name.version.hash, where hash is the first 8 hex digits of the
    bundle's SHA-256, and adds this directory to the `path` of the process that loads the app.
    """
    apps = (get_flwr_home() / APP_DIR).absolute()
    return " ".join(sorted({place.name for place in map(Path, path) if place.parent == apps}))


def digest_training(content: RecordDict, environment: bytes, message_type: str = TRAIN, group: str = "") -> Floats:
    """Return the digest of all data that a node receives for training, as 32 numbers in the place of the model.

    `environment` is the digest of run config and app bundle (`digest_environment`).  `message_type` and `group` are
    metadata of the train message: its type and its group id.
    """
    parts = ENCODER.encode((digest_content(content), environment, message_type, group))
    return np.frombuffer(hashlib.sha256(b"dordis/v1/flower-train" + parts).digest(), np.uint8).astype(np.float32)


def digest_received(message: FlowerMessage, context: Context) -> ModelBytes:
    """Return the digest of a received train message and its context, as 32 numbers in the place of the model.

    The invitation must name this "model"; see `check_invitation_names`.
    """
    metadata = message.metadata
    return ModelBytes.from_numbers(
        digest_training(message.content, digest_environment(context), metadata.message_type, metadata.group_id)
    )


def check_invitation_names(invite: Invite, received: ModelBytes) -> None:
    """Raise ParametersRefused unless the invitation has the digest `received` of the train message.

    A server that sends different data to one node could isolate that node's update.
    """
    if invite.model != received.digest or invite.model_bytes != len(received.data):
        raise ParametersRefused(
            "the invitation names another digest than that of the received train message: records, run config or app "
            "bundle of this node differ from those of the round, which would isolate its update; all must be the same"
        )


def check_same_records(asked: Iterable[FlowerMessage]) -> None:
    """Raise InputError if the strategy sends nodes different models or configs: the nodes would refuse the round."""
    contents = {id(message.content): message.content for message in asked}  # most strategies send one object to all
    if len({digest_content(content) for content in contents.values()}) > 1:
        raise InputError(
            "the strategy sends different models or configs to different nodes, which would isolate their updates: "
            "send the same records to all nodes (as FedAvg does), and set a node's own values with --node-config"
        )
