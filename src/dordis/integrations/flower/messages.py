"""Messages of dordis inside messages of Flower: several of them in one record, and what a run begins with."""

from collections.abc import Sequence
from typing import Any, ClassVar

from flwr.app import ConfigRecord, RecordDict

from dordis import wire
from dordis.errors import InputError, MalformedMessage
from dordis.protocol import Message

RECORD = "dordis"
"""The name of the record in a Flower message that holds ours."""
MOST = 4096
"""Messages of dordis in one message of Flower at most."""

Sealed = tuple[bytes, wire.Bulk]
"""A message as it travels: its frame and what goes beside it."""


class Enrolled(Message, frozen=True):
    """My public keys, and the weight of my updates, which is public too."""

    signing: bytes
    vrf: bytes
    environment: bytes
    """Digest of this node's run config and app bundle."""
    weight: float = 1.0
    simulated: bool = False
    """Whether this node belongs to Flower's simulation engine."""


class Enrol(Message, frozen=True):
    """Before a run in a `mode`: send your public keys; no data is touched."""

    reply: ClassVar = Enrolled
    mode: str


class CharterRead(Message, frozen=True):
    """I know the run."""


class Charter(Message, frozen=True):
    """The description of a run: its registry, protocol, selection and cohort.

    It comes before the first invitation; the first one of a run of Flower is final.  A node whose owner has pinned a
    registry and the size of a cohort compares them.
    """

    reply: ClassVar = CharterRead
    run: bytes
    registry: bytes
    """As `Registry.to_bytes` writes it."""
    protocol: str
    selection: str
    per_round: int
    least: int


def check_weight(weight: float) -> None:
    """A weight is above 0 and at most 1: so that no client can change more than one of weight 1."""
    if not 0.0 < weight <= 1.0:
        raise InputError(f"the weight of a node is above 0 and at most 1, not {weight:g}: set dordis-weight")


def seal(message: Message) -> Sealed:
    """Encode a message."""
    return wire.encode(message), wire.bulk_of(message)


def to_record(sealed: Sequence[Sealed], refusal: str = "") -> ConfigRecord:
    """Put messages into a record, and why there are not more of them."""
    values: dict[str, Any] = {"count": len(sealed), "refusal": refusal}
    for place, (frame, bulk) in enumerate(sealed):
        values[f"{place}"] = frame
        if len(bulk):
            values[f"{place}-bulk"] = bytes(bulk)
    return ConfigRecord(values)


def from_record(content: RecordDict) -> tuple[list[Sealed], str]:
    """Take the messages out of a record, whoever wrote it, and why there are not more."""
    record = content.config_records[RECORD]
    count, refusal = record.get("count"), record.get("refusal", "")
    if not isinstance(count, int) or not 0 <= count <= MOST or not isinstance(refusal, str):
        raise MalformedMessage("this is not a record of dordis")
    sealed = [(record.get(f"{place}"), record.get(f"{place}-bulk", b"")) for place in range(count)]
    if not all(isinstance(part, bytes) for message in sealed for part in message):
        raise MalformedMessage("this is not a record of dordis")
    return sealed, refusal
