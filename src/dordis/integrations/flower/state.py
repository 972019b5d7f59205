"""What a client remembers between messages, in Flower's `context.state`: it is made anew for every message.

Flower keeps that state on the node and hands it to the ClientApp with each message.  Keys, charter and the count of
rounds last as long as Flower's run; what belongs to a round is replaced by the next round, and the update and the input
are dropped as soon as the input has left.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from flwr.app import ConfigRecord, RecordDict

from dordis.errors import Aborted
from dordis.federation.participation import MemoryParticipation, NewRound, Participation, Rounds, Tally
from dordis.federation.registry import Keys
from dordis.federation.trainings import MemoryTrainings
from dordis.integrations.flower.messages import Charter
from dordis.protocol import ENCODER, Journal, check_same_request
from dordis.rounds.events import Encoded, Trained

RUN, ROUND = "dordis-run", "dordis-round"
"""Names of the two records of the state."""
KEPT = 1 << 16
"""Bytes of the longest reply that is kept to be given again; Flower delivers a message once."""

_Claim = tuple[str, bytes, bytes, bytes | None]


class NodeState(Protocol):
    """State of a node between messages."""

    @property
    def charter(self) -> Charter | None:
        """Return the charter of the run of Flower, if it has come."""
        ...

    def keep_charter(self, charter: Charter) -> None:
        """Keep the charter of the run of Flower."""
        ...

    @property
    def journals(self) -> Callable[[bytes], Journal]:
        """Return a function that opens the journal of a round."""
        ...

    @property
    def under_way(self) -> bytes | None:
        """Return the round that this node is in, if any."""
        ...

    def participation(self) -> Participation:
        """Return the count of participations."""
        ...

    def trainings(self) -> MemoryTrainings:
        """Return the training count since the last counted round."""
        ...

    def note_training(self, what: str, failure: str) -> None:
        """Record the outcome of a training for the owner; `failure` says why its update is zero."""
        ...

    def drop_input(self, round: bytes) -> None:
        """Drop the input of a round after its upload."""
        ...


class RunState:
    """State for one Flower run: keys, charter, participations, rounds that were left."""

    def __init__(self, state: RecordDict, run: int) -> None:
        if RUN not in state:
            state[RUN] = ConfigRecord()
        record: Any = state[RUN]
        self._state, self._record, self._run = state, record, run

    def keys(self) -> Keys:
        """Return the keys of this node, drawn when they are first asked for."""
        if "signing" not in self._record:
            drawn = Keys.generate()
            self._record["signing"], self._record["vrf"] = drawn.signing, drawn.vrf
        return Keys(self._record["signing"], self._record["vrf"])

    @property
    def charter(self) -> Charter | None:
        """Return the charter of the run, if it has come."""
        data = self._record.get(f"charter-{self._run}")
        return None if data is None else msgspec.msgpack.decode(data, type=Charter)

    def keep_charter(self, charter: Charter) -> None:
        """Keep the charter of the run."""
        self._record[f"charter-{self._run}"] = ENCODER.encode(charter)

    def left(self, round: bytes) -> bool:
        """Tell whether this client has left a round."""
        return bool(self._record.get(f"left-{round.hex()}", False))

    def leave(self, round: bytes) -> None:
        """Leave a round for good."""
        self._record[f"left-{round.hex()}"] = True

    @property
    def journals(self) -> "StateJournals":
        """Return the journals of the rounds."""
        return StateJournals(self._state, self)

    @property
    def under_way(self) -> bytes | None:
        """Return the round that this node is in, if any."""
        return self.journals.under_way

    def participation(self) -> "StateParticipation":
        """Return the count of participations."""
        return StateParticipation(self._record)

    def trainings(self) -> "StateTrainings":
        """Return the training count since the last counted round."""
        return StateTrainings(self._record)

    def note_training(self, what: str, failure: str) -> None:
        """Do nothing: a node that is not pinned has no directory of its owner."""

    def drop_input(self, round: bytes) -> None:
        """Drop the input of a round after its upload."""
        self.journals(round).uploaded()


class StateParticipation(MemoryParticipation):
    """A count of rounds, and of what they cost, that lasts as long as Flower's run."""

    def __init__(self, record: Any) -> None:
        super().__init__()
        self._record = record
        if "participations" in record:
            self._counted = Tally(msgspec.msgpack.decode(record["participations"], type=Rounds))

    def _keep(self, new: NewRound | None) -> None:
        self._record["participations"] = ENCODER.encode(self._counted.rounds)


class StateTrainings(MemoryTrainings):
    """A training count for one Flower run."""

    def __init__(self, record: Any) -> None:
        super().__init__()
        self._record = record

    def _read(self) -> tuple[int, int]:
        since, count = self._record.get("trainings", [0, 0])
        return since, count

    def _write(self, participations: int, count: int) -> None:
        self._record["trainings"] = [participations, count]


class StateJournals:
    """The journal of the round that is under way; opening another round ends it."""

    def __init__(self, state: RecordDict, run: RunState) -> None:
        self._state, self._run = state, run

    def __call__(self, round: bytes) -> "StateJournal":
        """Open the journal of a round; one that this client has left raises `Aborted`."""
        if self._run.left(round):
            raise Aborted("this client has left the round")
        if self.under_way != round:
            if self.under_way is not None:
                self._run.leave(self.under_way)
            self._state[ROUND] = ConfigRecord({"round": round})
        return StateJournal(self._state[ROUND], self._run)

    @property
    def under_way(self) -> bytes | None:
        """Return the round that this client is in, if any."""
        if ROUND not in self._state or "round" not in self._state[ROUND]:
            return None
        round: bytes = self._state[ROUND]["round"]
        return round


class StateJournal:
    """A `dordis.protocol.Journal` in a record of Flower."""

    def __init__(self, record: Any, run: RunState) -> None:
        self._record, self._run, self._closed = record, run, False

    def claim(self, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> bytes:
        """Return the reply stored under the key; if there is none, `respond` makes it and the changes of the state."""
        if self._closed:
            raise Aborted("this client has left the round")
        for name, claimed, _, reply in self._claims():
            if name == key:
                check_same_request(key, claimed, digest)
                if reply is None:
                    raise Aborted("this was answered, and the answer is not kept")
                return reply
        changes, made = respond()
        kept = made if len(made) <= KEPT else None
        self._add("claim", ENCODER.encode((key, digest, changes, kept)))
        return made

    def since(self, claims: int) -> Sequence[bytes]:
        """Return the changes of the state that came with all claims but the first so many, in order."""
        return [changes for _, _, changes, _ in self._claims()[claims:]]

    def note(self, event: msgspec.Struct) -> None:
        """Keep an event; the update goes when the input is made of it."""
        if self._closed:
            raise Aborted("this client has left the round")
        if isinstance(event, Encoded):
            self._replace(Trained, lambda trained: msgspec.structs.replace(trained, update=memoryview(b"")))
        self._add("event", ENCODER.encode(event))

    def events(self, kind: Any) -> Sequence[Any]:
        """Return what was noted, in order, as structs of a kind, or of a union of kinds."""
        decoder = msgspec.msgpack.Decoder(kind)
        return [decoder.decode(data) for data in self._all("event")]

    def uploaded(self) -> None:
        """Drop the input, which has left."""
        self._replace(Encoded, lambda encoded: msgspec.structs.replace(encoded, vector=memoryview(b"")))

    def release(self) -> None:
        """Let go of nothing: Flower keeps the state."""

    def close(self) -> None:
        """Refuse everything from now on and forget what was stored."""
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

    def _replace(self, kind: type[msgspec.Struct], change: Callable[[Any], msgspec.Struct]) -> None:
        for place, data in enumerate(self._all("event")):
            try:
                event = msgspec.msgpack.decode(data, type=kind)
            except msgspec.ValidationError:
                continue
            self._record[f"event-{place}"] = ENCODER.encode(change(event))
