"""One digest of everything that a node trains on; the invitation names it, so that all nodes train on the same.

It covers all records of the train message except the record of dordis, its type and group, and the values of the whole
Flower run: the run config and the app bundle.  A server that sends other values to one node could isolate its update,
so a node refuses an invitation whose digest is not that of the received message.
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
    """Return the hash of a node's values for a Flower run: run id, run config, app bundle."""
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
    """Return the digest of everything that a node trains on, as the numbers that stand for the round's model."""
    parts = ENCODER.encode((digest_content(content), environment, message_type, group))
    return np.frombuffer(hashlib.sha256(b"dordis/v1/flower-train" + parts).digest(), np.uint8).astype(np.float32)


def received_model(message: FlowerMessage, context: Context) -> ModelBytes:
    """Return the digest of a received train message, which its invitation must name."""
    metadata = message.metadata
    return ModelBytes.of(
        train_numbers(message.content, digest_environment(context), metadata.message_type, metadata.group_id)
    )


def check_invitation_names(invite: Invite, received: ModelBytes) -> None:
    """The invitation names the digest of the received message: other records would isolate this node's update."""
    if invite.model != received.digest or invite.model_bytes != len(received.data):
        raise ParametersRefused(
            "the invitation names another digest than that of the received train message: records, run config or app "
            "bundle of this node differ from those of the round, which would isolate its update; all must be the same"
        )


def check_same_records(asked: Iterable[FlowerMessage]) -> None:
    """The strategy sends the same records to all nodes; nodes refuse to train on different ones."""
    contents = {id(message.content): message.content for message in asked}  # most strategies share one
    if len({digest_content(content) for content in contents.values()}) > 1:
        raise InputError(
            "the strategy sends different models or configs to different nodes, which would isolate their updates: "
            "send the same records to all nodes (as FedAvg does), and set a node's own values with --node-config"
        )
