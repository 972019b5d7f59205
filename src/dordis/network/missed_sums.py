"""Missed sums for visiting clients: one document per round, of which a client downloads the part that it lacks.

A client with an earlier model of the run computes the present one from the sums of the rounds since then, if they are
shorter than the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dordis import wire
from dordis.errors import MalformedMessage
from dordis.protocols.limits import LONGEST_REPLAY, MOST_REPLAYS
from dordis.rounds.invitation import SendSum

LENGTH_BYTES = 4
"""Bytes of the big-endian length before the frame of a sum, and before its vector."""


@dataclass(frozen=True)
class SumDocument:
    """The recent sums of a run in order, encoded, and the offset of the first sum to apply to each earlier model."""

    data: bytes = b""
    starts: dict[bytes, int] = field(default_factory=dict)
    """By digest of a model, the offset in `data` of the first sum to apply to it."""

    @classmethod
    def from_sums(cls, sums: Sequence[SendSum]) -> "SumDocument":
        """Return the document of the sums of consecutive rounds; each sum is applied to the model that it names."""
        data, starts = bytearray(), dict[bytes, int]()
        for one in sums:
            starts[one.parameters.model] = len(data)
            for part in (wire.encode(one), wire.bulk_of(one)):
                data += len(part).to_bytes(LENGTH_BYTES, "big")
                data += part
        return cls(bytes(data), starts)

    def since(self, digest: bytes) -> memoryview | None:
        """Return the sums that lead from the model with this digest to the present model; None if some are missing."""
        start = self.starts.get(digest)
        return None if start is None else memoryview(self.data)[start:]


def read_sums(data: bytes) -> list[SendSum]:
    """Return the sums in a download, in order; raise MalformedMessage if it is incomplete or has over MOST_REPLAYS."""
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
