"""Incomplete contributions of visiting clients: each is spooled to a temporary file, so that it can be resumed.

Every file takes a descriptor of the server's process, so only the last MOST_KEPT interrupted uploads are kept; older
ones have to begin again.
"""

import tempfile
from dataclasses import dataclass, field
from typing import IO

from aiohttp import web

from dordis import wire
from dordis.errors import MalformedMessage
from dordis.network.upload_endpoint import STALL, LeastRate, discard_file
from dordis.protocol import ClientId, Message

LENGTH_BYTES, LARGEST_FRAME = 4, 1 << 16
"""Bytes of the frame's length, and largest frame in bytes: a contribution is this length, the frame, and the vector."""
MOST_KEPT = 256
"""Largest number of interrupted uploads that are kept, of all clients together."""


@dataclass(eq=False)
class SpooledUpload:
    """The part of a contribution that has arrived, in a temporary file."""

    size: int
    file: IO[bytes] = field(default_factory=lambda: tempfile.TemporaryFile(prefix="dordis-"))  # noqa: SIM115  closed once it is read
    received: int = 0
    is_receiving: bool = False

    async def receive(self, request: web.Request) -> None:
        """Append the body of a request to the file; raise TimeoutError if it stalls, OSError if the disk is full."""
        async with LeastRate(STALL) as rate:
            async for piece in request.content.iter_any():
                if self.received + len(piece) > self.size:
                    raise MalformedMessage("a contribution is longer than announced")
                self.file.write(piece)
                self.received += len(piece)
                rate.count(len(piece))
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        discard_file(self.file)

    def read(self, kind: type[Message]) -> tuple[bytes, Message]:
        """Return the frame and the decoded message of a complete contribution; raise if it is malformed."""
        self.file.seek(0)
        length = int.from_bytes(self.file.read(LENGTH_BYTES), "big")
        check_frame_length(length)
        frame = self.file.read(length)
        return frame, wire.decode(frame, kind, LARGEST_FRAME, bulk=self.file.read())


class SpooledUploads:
    """The incomplete uploads of a round, at most one per client: those being received, and interrupted ones."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._uploads: dict[ClientId, SpooledUpload] = {}

    def get(self, client: ClientId) -> SpooledUpload | None:
        """Return the incomplete upload of a client; None if there is none."""
        return self._uploads.get(client)

    def begin(self, client: ClientId, size: int) -> SpooledUpload:
        """Return a new upload in place of the client's last one; beyond MOST_KEPT, drop the oldest interrupted one."""
        self.drop(client)
        idle = [u for u, upload in self._uploads.items() if not upload.is_receiving]
        for u in idle[: max(0, len(idle) - self._most + 1)]:
            self.drop(u)
        upload = self._uploads[client] = SpooledUpload(size)
        return upload

    def drop(self, client: ClientId) -> None:
        """Drop the incomplete upload of a client; if it is being received, `close_forgotten` closes its file later."""
        upload = self._uploads.pop(client, None)
        if upload is not None and not upload.is_receiving:
            upload.close()

    def take(self, client: ClientId, upload: SpooledUpload) -> None:
        """Remove a complete upload; from now on the caller has to close its file."""
        if self._uploads.get(client) is upload:
            del self._uploads[client]

    def close_forgotten(self, client: ClientId, upload: SpooledUpload) -> None:
        """Close the file of an interrupted upload that was dropped while it was received."""
        if upload.received < upload.size and self._uploads.get(client) is not upload:
            upload.close()

    def clear(self) -> None:
        """Drop all incomplete uploads."""
        for client in list(self._uploads):
            self.drop(client)


def check_frame_length(length: int) -> None:
    """Raise MalformedMessage if the frame of a contribution is longer than LARGEST_FRAME."""
    if length > LARGEST_FRAME:
        raise MalformedMessage(f"the frame of a contribution has {length} bytes, more than {LARGEST_FRAME}")
