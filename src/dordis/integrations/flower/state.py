"""The state of a client between messages: in Flower's `context.state`, or for a pinned node in the owner's directory.

The client is built anew for every Flower message.  Flower stores `context.state` on the node and passes it to the
ClientApp with each message.  In `context.state`, keys, run description and participation count last for one Flower run,
and the state of a round is replaced by that of the next round.  The update is deleted as soon as the encoded input is
stored, and the encoded input after the upload.  `FileState` describes the state of a pinned node.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from flwr.app import ConfigRecord, RecordDict

from dordis.durable_files import write_new
from dordis.errors import Aborted
from dordis.identity.keys import Keys
from dordis.integrations.flower.messages import RunDescription
from dordis.owner.directory import ClientDirectory
from dordis.owner.journal import FileJournals
from dordis.owner.participation import (
    FileParticipation,
    FileTrainings,
    MemoryParticipation,
    MemoryTrainings,
    NewRound,
    ParticipationTally,
    Rounds,
)
from dordis.protocol import ENCODER, check_same_request
from dordis.rounds.catch_up import Encoded, Trained

RUN, ROUND = "dordis-run", "dordis-round"
"""Names of the records in `context.state` for the state of the run and of the open round."""
HELPER = "dordis-helper"
"""Name of the record in `context.state` for the state of a helper."""
LONGEST_STORED_REPLY = 1 << 16
"""Longest reply, in bytes, that is stored in case its request is repeated, which is rare under Flower."""

_Claim = tuple[str, bytes, bytes, bytes | None]


class RunState:
    """The state, for one Flower run, of a node whose owner has pinned no keys in a file.

    It has keys, run description, participation count, training count, and the rounds that the client has left for good.
    """

    def __init__(self, state: RecordDict, run: int) -> None:
        if RUN not in state:
            state[RUN] = ConfigRecord()
        record: Any = state[RUN]
        self._state, self._record, self._run = state, record, run

    def keys(self) -> Keys:
        """Return the keys of this node, generated on first use."""
        if "signing" not in self._record:
            drawn = Keys.generate()
            self._record["signing"], self._record["vrf"] = drawn.signing, drawn.vrf
        return Keys(self._record["signing"], self._record["vrf"])

    def helper_keys(self) -> Keys:
        """Return the keys of this node as a helper, generated on first use: they differ from its keys as a client."""
        if "helper-signing" not in self._record:
            drawn = Keys.generate()
            self._record["helper-signing"], self._record["helper-vrf"] = drawn.signing, drawn.vrf
        return Keys(self._record["helper-signing"], self._record["helper-vrf"])

    @property
    def description(self) -> RunDescription | None:
        """Return the description of the run; None if it has not been received yet."""
        data = self._record.get(f"description-{self._run}")
        return None if data is None else msgspec.msgpack.decode(data, type=RunDescription)

    def keep_description(self, description: RunDescription) -> None:
        """Store the description of the run."""
        self._record[f"description-{self._run}"] = ENCODER.encode(description)

    def has_left(self, round: bytes) -> bool:
        """Tell whether this client has left a round for good."""
        return bool(self._record.get(f"left-{round.hex()}", False))

    def leave(self, round: bytes) -> None:
        """Record that this client has left a round for good."""
        self._record[f"left-{round.hex()}"] = True

    @property
    def journals(self) -> "StateJournals":
        """Return the function that opens the journal of a round."""
        return StateJournals(self._state, self)

    @property
    def open_round(self) -> bytes | None:
        """Return the id of the open round of this node; None if there is none."""
        return self.journals.open_round

    def participation(self) -> "StateParticipation":
        """Return the participation count of this node in the Flower run."""
        return StateParticipation(self._record)

    def trainings(self) -> "StateTrainings":
        """Return the count of trainings since the last counted participation."""
        return StateTrainings(self._record)

    def note_training(self, what: str, failure: str) -> None:
        """Do nothing, because a node that is not pinned has no owner's directory."""

    def drop_input(self, round: bytes) -> None:
        """Delete the encoded input of a round, after its upload, from the state."""
        self.journals(round).drop_input()


class StateHelperStore:
    """The state of a helper, stored in Flower's state of the node: enough for simulations and semi-honest servers."""

    def __init__(self, state: RecordDict) -> None:
        if HELPER not in state:
            state[HELPER] = ConfigRecord()
        self._record: Any = state[HELPER]

    def get(self, key: str) -> bytes | None:
        """Return the value stored under a key; empty if it was erased, None if none was ever stored."""
        value: bytes | None = self._record.get(key)
        return value

    def claim(self, key: str, value: bytes) -> bytes:
        """Return the value stored under the key; if none was ever stored, store and return `value`."""
        if key not in self._record:
            self._record[key] = value
        return bytes(self._record[key])

    def erase(self, key: str) -> None:
        """Erase a value; the key stays, so that no other value can be stored under it."""
        self._record[key] = b""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys with this prefix whose values are not erased."""
        return [key for key, value in self._record.items() if value and key.startswith(prefix)]


class StateParticipation(MemoryParticipation):
    """Counts a node's participations in one Flower run; the count is stored in Flower's `context.state`."""

    def __init__(self, record: Any) -> None:
        super().__init__()
        self._record = record
        if "participations" in record:
            self._tally = ParticipationTally(msgspec.msgpack.decode(record["participations"], type=Rounds))

    def _store(self, new: NewRound | None) -> None:
        self._record["participations"] = ENCODER.encode(self._tally.rounds)


class StateTrainings(MemoryTrainings):
    """Counts a node's trainings since its last counted participation; the count is in Flower's `context.state`."""

    def __init__(self, record: Any) -> None:
        super().__init__()
        self._record = record

    def _read(self) -> tuple[int, int]:
        since, count = self._record.get("trainings", [0, 0])
        return since, count

    def _write(self, participations: int, count: int) -> None:
        self._record["trainings"] = [participations, count]


class StateJournals:
    """Opens journals of rounds; a client is in one round at a time, and leaves it when another journal is opened."""

    def __init__(self, state: RecordDict, run: RunState) -> None:
        self._state, self._run = state, run

    def __call__(self, round: bytes) -> "StateJournal":
        """Open the journal of a round; raise `Aborted` if this client has left the round."""
        if self._run.has_left(round):
            raise Aborted("this client has left the round")
        if self.open_round != round:
            if self.open_round is not None:
                self._run.leave(self.open_round)
            self._state[ROUND] = ConfigRecord({"round": round})
        return StateJournal(self._state[ROUND], self._run)

    @property
    def open_round(self) -> bytes | None:
        """Return the id of the open round of this client; None if there is none."""
        if ROUND not in self._state or "round" not in self._state[ROUND]:
            return None
        round: bytes = self._state[ROUND]["round"]
        return round


class StateJournal:
    """A `dordis.protocol.Journal` in a record of Flower's state."""

    def __init__(self, record: Any, run: RunState) -> None:
        self._record, self._run, self._closed = record, run, False

    def claim(self, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> bytes:
        """Return the stored reply to a request; if there is none, store and return the reply that `respond` computes.

        `respond` returns the changes of the client's state and the reply.  `key` names the request, and `digest` is its
        hash.  Raise if a request with this key and another hash was answered, or the reply was too long to be stored.
        """
        if self._closed:
            raise Aborted("this client has left the round")
        for name, claimed, _, reply in self._claims():
            if name == key:
                check_same_request(key, claimed, digest)
                if reply is None:
                    raise Aborted("this request was answered before, and the reply was too long to be stored")
                return reply
        changes, made = respond()
        kept = made if len(made) <= LONGEST_STORED_REPLY else None
        self._add("claim", ENCODER.encode((key, digest, changes, kept)))
        return made

    def since(self, claims: int) -> Sequence[bytes]:
        """Return, in order, the state changes stored with each answered request after the first `claims` requests."""
        return [changes for _, _, changes, _ in self._claims()[claims:]]

    def note(self, event: msgspec.Struct) -> None:
        """Store an event; when `Encoded` is stored, the stored update is deleted, because it is no longer needed."""
        if self._closed:
            raise Aborted("this client has left the round")
        if isinstance(event, Encoded):
            self._clear(Trained, "update")
        self._add("event", ENCODER.encode(event))

    def events(self, kind: Any) -> Sequence[Any]:
        """Return the stored events in order, decoded as structs of the type, or union of types, `kind`."""
        decoder = msgspec.msgpack.Decoder(kind)
        return [decoder.decode(data) for data in self._all("event")]

    def drop_input(self) -> None:
        """Delete the encoded input after its upload."""
        self._clear(Encoded, "vector")

    def release(self) -> None:
        """Do nothing: Flower stores the state after each message."""

    def close(self) -> None:
        """Leave the round for good: delete its stored state, so that all further requests are refused."""
        if not self._closed:
            self._run.leave(self._record["round"])
            self._record.clear()
            self._closed = True

    def _claims(self) -> list[_Claim]:
        return [msgspec.msgpack.decode(data, type=_Claim) for data in self._all("claim")]

    def _all(self, kind: str) -> list[bytes]:
        return [self._record[f"{kind}-{place}"] for place in range(self._record.get(f"{kind}s", 0))]

    def _add(self, kind: str, data: bytes) -> None:
        place = self._record.get(f"{kind}s", 0)
        self._record[f"{kind}-{place}"] = data
        self._record[f"{kind}s"] = place + 1

    def _clear(self, kind: type[msgspec.Struct], field: str) -> None:
        """Empty a field in all stored events of a type."""
        for place, data in enumerate(self._all("event")):
            event = msgspec.msgpack.decode(data)
            if event["type"] == kind.__struct_config__.tag:
                self._record[f"event-{place}"] = ENCODER.encode(event | {field: b""})


@dataclass(frozen=True)
class FileState:
    """The state of a pinned node in its owner's directory; it is written before Flower gets a reply.

    Flower stores a node's context only after it has sent the reply.  A node that is stopped in between would lose the
    context, and could answer the same request again with a different reply.
    """

    path: Path
    run: int
    """Flower's id of the run."""

    @property
    def journals(self) -> FileJournals:
        """Return the journals of the node's rounds."""
        return ClientDirectory(self.path).journals

    @property
    def open_round(self) -> bytes | None:
        """Return the id of the open round of this node; None if there is none."""
        unfinished = self.journals.unfinished()
        return unfinished[0] if unfinished else None

    @property
    def description(self) -> RunDescription | None:
        """Return the description of the run; None if it has not been received yet."""
        file = self._description_file
        return msgspec.msgpack.decode(file.read_bytes(), type=RunDescription) if file.exists() else None

    def keep_description(self, description: RunDescription) -> None:
        """Store the description of the run; raise FileExistsError if one is stored already."""
        ClientDirectory(self.path)
        write_new(self._description_file, ENCODER.encode(description))

    def participation(self) -> FileParticipation:
        """Return the count of the participations of the node's key, over all runs and servers."""
        return ClientDirectory(self.path).participation()

    def trainings(self) -> FileTrainings:
        """Return the count of trainings since the last counted participation."""
        return ClientDirectory(self.path).trainings

    def note_training(self, what: str, failure: str) -> None:
        """Record for the owner how the training `what` ended; `failure` is empty if it succeeded."""
        ClientDirectory(self.path).status.note(what, failure)

    def drop_input(self, round: bytes) -> None:
        """Do nothing: the stored input is encrypted with a key that is destroyed when the next round begins."""

    @property
    def _description_file(self) -> Path:
        return self.path / f"description-{self.run}"


NodeState = RunState | FileState
"""State of a node between messages."""
