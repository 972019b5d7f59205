"""What a node trains on, as one digest that the invitation to a round names: all nodes train on the same.

It covers the records of the train message, all but those of dordis, its type and group, and what the node was given for
the whole run of Flower: the run config and the app bundle.  A server that sends one node something else isolates its
update, so a node refuses an invitation that names another digest than its own.
"""

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common.constant import APP_DIR
from flwr.supercore.utils import get_flwr_home

from dordis.errors import InputError, ParametersRefused
from dordis.integrations.flower.messages import RECORD
from dordis.privacy.skellam import Floats
from dordis.protocol import ENCODER
from dordis.rounds.invitation import Invite
from dordis.rounds.model import ModelBytes

TRAIN = "train"


def digest_content(content: RecordDict) -> bytes:
    """Return the hash of all records of a message, in their order, but for the record of dordis."""
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
    """Return the hash of what a node was given for a run of Flower: its id, the run config, the app bundle."""
    given = (context.run_id, sorted(context.run_config.items()), bundle_name(sys.path))
    return hashlib.sha256(b"dordis/v1/flower-environment" + ENCODER.encode(given)).digest()


def bundle_name(path: Iterable[str]) -> str:
    """Return the name under which Flower installed the app bundle, which ends with its hash; empty if it did not.

    Flower installs a bundle as publisher.name.version.hash, with the first 8 digits of the SHA-256 of the bundle, and
    puts the directory on the path of the process that loads the app.
    """
    apps = (get_flwr_home() / APP_DIR).absolute()
    return " ".join(sorted({place.name for place in map(Path, path) if place.parent == apps}))


def train_numbers(content: RecordDict, environment: bytes, message_type: str = TRAIN, group: str = "") -> Floats:
    """Return the digest of everything that a node trains on, as the numbers that a round takes for its model."""
    parts = ENCODER.encode((digest_content(content), environment, message_type, group))
    return np.frombuffer(hashlib.sha256(b"dordis/v1/flower-train" + parts).digest(), np.uint8).astype(np.float32)


def received_model(message: FlowerMessage, context: Context) -> ModelBytes:
    """Return the same on a node: what the invitation that comes with a train message has to name."""
    metadata = message.metadata
    return ModelBytes.of(
        train_numbers(message.content, digest_environment(context), metadata.message_type, metadata.group_id)
    )


def check_invitation_names(invite: Invite, received: ModelBytes) -> None:
    """The invitation names what this node was sent, whole: a node that trains on something else is singled out."""
    if invite.model != received.digest or invite.model_bytes != len(received.data):
        raise ParametersRefused(
            "the invitation names another train message than the one that this node got: its records, its run config "
            "or its app bundle differ from those of the round, and its update would be singled out"
        )


def check_same_records(asked: Iterable[FlowerMessage]) -> None:
    """The strategy sends the same records to all nodes: they would refuse to train on different ones."""
    contents = {id(message.content): message.content for message in asked}  # most strategies share one
    if len({digest_content(content) for content in contents.values()}) > 1:
        raise InputError(
            "the strategy sends different models or configs to different nodes, which would single out their updates: "
            "send the same records to all nodes (as FedAvg does), and give a node what is its own with --node-config"
        )
