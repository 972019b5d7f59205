"""Contributions on their way: each is spooled to a temporary file, and one that breaks off is kept for a while.

Every file takes a descriptor of the server's process.  Of the uploads that broke off, the last MOST_KEPT are kept;
older ones begin again.
"""

import tempfile
from dataclasses import dataclass, field
from typing import IO

from aiohttp import web

from dordis import wire
from dordis.errors import MalformedMessage
from dordis.network.uploads import STALL, LeastRate, discard_file
from dordis.protocol import ClientId, Message

LENGTH_BYTES, LARGEST_FRAME = 4, 1 << 16
"""A body is the length of the frame, the frame, the vector; most bytes of the frame."""
MOST_KEPT = 256
"""Uploads that are kept at most after they broke off, of all clients."""


@dataclass(eq=False)
class SpooledUpload:
    """The part of a contribution that has come, in a temporary file."""

    size: int
    file: IO[bytes] = field(default_factory=lambda: tempfile.TemporaryFile(prefix="dordis-"))  # noqa: SIM115  closed once it is read
    received: int = 0
    is_receiving: bool = False

    async def receive(self, request: web.Request) -> None:
        """Append the body of a request; raise TimeoutError if it stalls, OSError if there is no room on the disk."""
        async with LeastRate(STALL) as rate:
            async for piece in request.content.iter_any():
                if self.received + len(piece) > self.size:
                    raise MalformedMessage("a contribution is longer than it was said to be")
                self.file.write(piece)
                self.received += len(piece)
                rate.count(len(piece))
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        discard_file(self.file)

    def read(self, kind: type[Message]) -> tuple[bytes, Message]:
        """Return the frame and the message of a whole contribution."""
        self.file.seek(0)
        length = int.from_bytes(self.file.read(LENGTH_BYTES), "big")
        check_frame_length(length)
        frame = self.file.read(length)
        return frame, wire.decode(frame, kind, LARGEST_FRAME, bulk=self.file.read())


class SpooledUploads:
    """The incomplete uploads of a round, one of each client: those under way, and the latest that broke off."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._uploads: dict[ClientId, SpooledUpload] = {}

    def get(self, client: ClientId) -> SpooledUpload | None:
        """Return the incomplete upload of a client, if there is one."""
        return self._uploads.get(client)

    def begin(self, client: ClientId, size: int) -> SpooledUpload:
        """Return a new upload of a client in place of the one before; drop the oldest that broke off if need be."""
        self.drop(client)
        idle = [u for u, upload in self._uploads.items() if not upload.is_receiving]
        for u in idle[: max(0, len(idle) - self._most + 1)]:
            self.drop(u)
        upload = self._uploads[client] = SpooledUpload(size)
        return upload

    def drop(self, client: ClientId) -> None:
        """Forget the incomplete upload of a client; the file of one that is being received stays open for now."""
        upload = self._uploads.pop(client, None)
        if upload is not None and not upload.is_receiving:
            upload.close()

    def take(self, client: ClientId, upload: SpooledUpload) -> None:
        """Hand out an upload that is complete: whoever takes it closes its file."""
        if self._uploads.get(client) is upload:
            del self._uploads[client]

    def close_forgotten(self, client: ClientId, upload: SpooledUpload) -> None:
        """Close the file of an upload that broke off, and was forgotten while it was received."""
        if upload.received < upload.size and self._uploads.get(client) is not upload:
            upload.close()

    def clear(self) -> None:
        """Forget all incomplete uploads."""
        for client in list(self._uploads):
            self.drop(client)


def check_frame_length(length: int) -> None:
    """The frame of a contribution is not longer than any frame with the most helpers and sets."""
    if length > LARGEST_FRAME:
        raise MalformedMessage(f"the frame of a contribution has {length} bytes, more than {LARGEST_FRAME}")
