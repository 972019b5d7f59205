"""TLS of the server's connections, with counts of bytes and fragments by which floods are cut.

Fragments of a WebSocket message that have no content are invisible above TLS.
"""

import asyncio
import ssl
from typing import Any

READ_AHEAD = 1 << 20
"""Bytes that may have arrived on a connection before a request on it is authorised, or a message is taken."""
SHORT_FRAGMENT, MOST_FRAGMENTS = 1024, 256
"""Fragments of messages below SHORT_FRAGMENT bytes on a connection: clients send none, and proxies make longer ones."""


class FragmentCounter:
    """Count the short fragments of WebSocket messages in the bytes of a connection, which aiohttp does not report."""

    def __init__(self) -> None:
        self.count = 0
        self._skip, self._header = 0, b""

    def feed(self, data: bytes) -> None:
        """Count in the next bytes: RFC 6455, section 5.2."""
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
    """TLS that counts bytes and fragments, and logs why a handshake failed, which asyncio does not report."""

    received = 0
    allowed: float = READ_AHEAD
    """Bytes after which the connection is cut; without bound as soon as a request carries a valid token."""
    fragments: FragmentCounter | None = None
    """Counter of fragments, on a control connection."""
    is_flooded = False
    """Whether the connection was cut because of too many bytes or fragments."""

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """Read as `ssl.SSLObject.read` does; raise SSLError if too many bytes or fragments came."""
        data = super().read(len) if buffer is None else super().read(len, buffer)
        if isinstance(data, bytes):  # aiohttp never passes a buffer
            self.received += data.__len__()
            if self.fragments is not None:
                self.fragments.feed(data)
        try:
            check_bytes_allowed(self.received, self.allowed)
            check_fragments(0 if self.fragments is None else self.fragments.count)
        except ssl.SSLError:
            self.is_flooded = True
            raise
        return data


def check_bytes_allowed(received: int, allowed: float) -> None:
    """Raise SSLError, which ends the connection, if more bytes came than are allowed."""
    if received > allowed:
        raise ssl.SSLError(f"{received} bytes came, and {allowed:.0f} are allowed")


def check_fragments(count: int) -> None:
    """Raise SSLError, which ends the connection, if more short fragments came than proxies may make."""
    if count > MOST_FRAGMENTS:
        raise ssl.SSLError(f"{count} short fragments of messages came")


def metered_tls(transport: asyncio.BaseTransport | None) -> MeteredTLS | None:
    """Return the TLS of a connection, or None if the connection is lost."""
    tls = None if transport is None else transport.get_extra_info("ssl_object")
    return tls if isinstance(tls, MeteredTLS) else None
