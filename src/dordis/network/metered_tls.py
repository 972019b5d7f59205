"""TLS of the server's connections, with counts of bytes and of WebSocket fragments, to stop floods.

Fragments are counted here because aiohttp does not report those without content.
"""

import asyncio
import ssl
from typing import Any

READ_AHEAD = 1 << 20
"""Bytes allowed on a connection before a request is authorised, and on a control connection beyond its messages."""
LARGEST_RECORD = 1 << 14
"""Most bytes of content in a TLS record (RFC 8446, section 5.1), and so most bytes of one read."""
SHORT_FRAGMENT, MOST_FRAGMENTS = 1024, 256
"""Bytes below which a fragment is short, and most short fragments on a connection; dordis clients send none."""


class FragmentCounter:
    """Counts the short fragments of WebSocket messages in the bytes of a connection."""

    def __init__(self) -> None:
        self.count = 0
        self._skip, self._header = 0, b""

    def feed(self, data: bytes) -> None:
        """Count the short fragments in the next bytes, by RFC 6455, section 5.2."""
        data, position = self._header + data, self._skip
        while position + 2 <= len(data):
            short = data[position + 1] & 0x7F
            extended = {126: 2, 127: 8}.get(short, 0)
            start = position + 2 + extended
            if start > len(data):
                break
            length = int.from_bytes(data[start - extended : start]) if extended else short
            self.count += length < SHORT_FRAGMENT and not data[position] & 0x80
            position = start + length + (4 if data[position + 1] & 0x80 else 0)
        self._header, self._skip = data[position:], max(0, position - len(data))


class MeteredTLS(ssl.SSLObject):
    """A TLS object that counts received bytes and fragments, and ends the connection if there are too many."""

    received = 0
    allowed: float = READ_AHEAD
    """Received bytes beyond which the connection is cut; infinite after an authorised request.

    On a control connection they stay limited (`Session.limit_bytes`).
    """
    fragments: FragmentCounter | None = None
    """The fragment counter of a control connection; None for other connections."""
    is_flooded = False
    """Whether the connection was cut because of too many bytes or fragments."""

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """Return what `ssl.SSLObject.read` does; raise SSLError if too many bytes or fragments came."""
        if buffer is not None:  # aiohttp never passes one
            return super().read(len, buffer)
        data = super().read(min(len, LARGEST_RECORD))  # asyncio asks for 256 kB, allocated anew for every record
        self.received += data.__len__()
        try:
            check_bytes_allowed(self.received, self.allowed)
            if self.fragments is not None:
                self.fragments.feed(data)
                check_fragments(self.fragments.count)
        except ssl.SSLError:
            self.is_flooded = True
            raise
        return data


def check_bytes_allowed(received: int, allowed: float) -> None:
    """Raise SSLError, which ends the connection, if more bytes came than allowed."""
    if received > allowed:
        raise ssl.SSLError(f"{received} bytes came, and {allowed:.0f} are allowed")


def check_fragments(count: int) -> None:
    """Raise SSLError, which ends the connection, if too many short fragments came."""
    if count > MOST_FRAGMENTS:
        raise ssl.SSLError(f"{count} short fragments of messages came")


def metered_tls(transport: asyncio.BaseTransport | None) -> MeteredTLS | None:
    """Return the TLS object of a connection; None if the connection is lost."""
    tls = None if transport is None else transport.get_extra_info("ssl_object")
    return tls if isinstance(tls, MeteredTLS) else None
