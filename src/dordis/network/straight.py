"""A connection of aiohttp whose bodies can come straight into a buffer.

Between TLS and whoever reads a body, asyncio and aiohttp copy it three times and wake the reader for each piece.  Here
the reader is woken once, when TLS has written the whole body to where it is kept.
"""

import asyncio
from typing import Any, Protocol

from aiohttp import StreamReader, web
from aiohttp.http import HttpRequestParser

from dordis.errors import MalformedMessage

CHUNK = 1 << 16
"""Bytes that are taken at once from a connection, but for bodies; aiohttp stops to read at twice as many of a body."""
_REPLACEABLE = hasattr(web.RequestHandler, "_parser")
"""Whether aiohttp keeps its parser where it can be replaced, as 3.14 does; else bodies are copied."""


class Sink(Protocol):
    """Where a body goes."""

    def room(self) -> memoryview:
        """Return where the next bytes go; if nobody waits for the body any more, `MalformedMessage` is raised."""
        ...

    def took(self, count: int) -> bool:
        """Take note that so many bytes were written there; tell whether the body is whole."""
        ...

    def write(self, piece: bytes) -> None:
        """Copy bytes to where they go."""
        ...


class StraightHandler(web.RequestHandler, asyncio.BufferedProtocol):
    """What aiohttp does on a connection, and `pour`."""

    __slots__ = ("_sink", "_space", "_whole")

    def __init__(self, space: memoryview, server: Any, **settings: Any) -> None:
        loop = asyncio.get_running_loop()
        settings |= {"access_log": None, "auto_decompress": False}  # the length of a body is what it says
        super().__init__(server, loop=loop, read_bufsize=CHUNK, **settings)
        self._space = space
        self._sink: Sink | None = None
        self._whole: asyncio.Future[None] = loop.create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where TLS writes next."""
        try:
            if self._sink is not None and not self._whole.done():
                return self._sink.room()
        except MalformedMessage as error:
            self._whole.set_exception(error)
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        """Take what TLS has written."""
        if self._sink is None or self._whole.done():
            self.data_received(bytes(self._space[:nbytes]))
        elif self._sink.took(nbytes):
            self._parser = HttpRequestParser(
                self, self._loop, CHUNK, payload_exception=web.RequestPayloadError, auto_decompress=False
            )  # the one before waits for a body that it will not see
            self._whole.set_result(None)

    async def pour(self, content: StreamReader, sink: Sink) -> None:
        """Write a body to where it goes: what aiohttp has of it already, then what TLS writes there itself."""
        while piece := content.read_nowait() if _REPLACEABLE else await content.readany():
            sink.write(piece)
        if content.is_eof():
            return
        self._sink, self._whole = sink, self._loop.create_future()
        try:
            await self._whole
        finally:
            self._sink = None
        content.feed_eof()
