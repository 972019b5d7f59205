"""Missed sums for clients that visit: one document of a round, from which a client downloads what it lacks.

A client that has an earlier model of the run makes the present one from the sums in between, if they are shorter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dordis import wire
from dordis.errors import MalformedMessage
from dordis.protocols.limits import LONGEST_REPLAY, MOST_REPLAYS
from dordis.rounds.invitation import SendSum

LENGTH_BYTES = 4
"""Bytes of the length, big-endian, before the frame of a sum and before its vector."""


@dataclass(frozen=True)
class SumDocument:
    """The recent sums of a run in order, one after the other, and where those after each model begin."""

    data: bytes = b""
    starts: dict[bytes, int] = field(default_factory=dict)
    """Offset of the first sum that leads on from a model, by the model's digest."""

    @classmethod
    def from_sums(cls, sums: Sequence[SendSum]) -> "SumDocument":
        """Write down sums, each of which leads to the model that the next one starts from."""
        data, starts = bytearray(), dict[bytes, int]()
        for one in sums:
            starts[one.parameters.model] = len(data)
            for part in (wire.encode(one), wire.bulk_of(one)):
                data += len(part).to_bytes(LENGTH_BYTES, "big")
                data += part
        return cls(bytes(data), starts)

    def since(self, digest: bytes) -> memoryview | None:
        """Return the sums that lead from a model to the present one; None if they are not here."""
        start = self.starts.get(digest)
        return None if start is None else memoryview(self.data)[start:]


def read_sums(data: bytes) -> list[SendSum]:
    """Return the sums of a download in order; raise MalformedMessage if it is not whole."""
    sums, rest = list[SendSum](), memoryview(data)

    def take() -> memoryview:
        nonlocal rest
        end = LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES], "big")
        if not LENGTH_BYTES <= end <= len(rest):
            raise MalformedMessage("the sums that this client missed are cut short")
        part, rest = rest[LENGTH_BYTES:end], rest[end:]
        return part

    while rest:
        if len(sums) == MOST_REPLAYS:
            raise MalformedMessage(f"the server sent more than {MOST_REPLAYS} missed sums")
        frame = bytes(take())
        sums.append(wire.decode(frame, SendSum, LONGEST_REPLAY, bulk=bytes(take())))
    return sums
