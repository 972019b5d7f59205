"""Where clients put their vectors: who may put what, how much of it at once, and what has come of it."""

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from aiohttp import ClientError, web

from dordis.errors import DordisError, MalformedMessage
from dordis.network.bulk import Body, Buffers
from dordis.network.messages import TOKEN_BYTES, Beside
from dordis.network.straight import StraightHandler
from dordis.protocol import ClientId

BUFFERS = 4
SLOTS, CLIENT_SLOTS = 64, 4
"""Bodies that are taken at once, from all clients, and transfers of one client; others are told to come again."""
ANNOUNCED = 5.0
"""Seconds that a body may be earlier than its announcement, which comes on another connection."""
RETRY = {"Retry-After": "1"}

_TOKEN, _ID = re.compile(rf"[0-9a-f]{{{2 * TOKEN_BYTES}}}"), re.compile("[0-9]{1,15}")
_RANGE = re.compile(r"bytes ([0-9]{1,12})-([0-9]{1,12})/([0-9]{1,12})")


@dataclass(eq=False)
class HeldHere:
    """A body that has come whole, in a buffer that is used again when this is released."""

    bulk: memoryview = field(repr=False)
    _buffer: bytearray = field(repr=False)
    _buffers: Buffers = field(repr=False)

    def release(self) -> None:
        """Give the buffer back."""
        self._buffers.give(self._buffer)


Delivered = Callable[[ClientId, int, HeldHere], None]
"""Told of a body that is whole: whose, of which request, and where it is, which it releases."""


class Intake:
    """The bodies that are expected, by client and request."""

    def __init__(self, delivered: Delivered, buffers: Buffers | None = None) -> None:
        self.buffers = Buffers(BUFFERS) if buffers is None else buffers
        self._delivered = delivered
        self._tokens: dict[bytes, tuple[ClientId, bytes]] = {}
        self._expected: dict[tuple[ClientId, int], Body] = {}
        self._done: dict[ClientId, set[int]] = {}
        self._early: dict[tuple[ClientId, int], asyncio.Event] = {}
        self._taken: Counter[ClientId] = Counter()
        self._receiving = 0

    def admit(self, client: ClientId, machine: bytes) -> bytes:
        """Return a token for all that a client does from now on; one that it had before is void."""
        token = secrets.token_bytes(TOKEN_BYTES)
        self.grant(client, machine, token)
        return token

    def grant(self, client: ClientId, machine: bytes, token: bytes) -> None:
        """Take whoever shows this token for a client, from now on."""
        self.dismiss(client)
        self._tokens[token] = (client, machine)

    def dismiss(self, client: ClientId) -> None:
        """Take nothing more from a client, and give it nothing."""
        self._tokens = {token: held for token, held in self._tokens.items() if held[0] != client}

    def expect(self, client: ClientId, id: int, beside: Beside) -> None:
        """Take a body of this size for a request; one that is announced again goes on where it stopped."""
        body = self._expected.get((client, id))
        self._done.get(client, set()).discard(id)  # what came before was dropped: its client was not connected
        if body is None:
            self._expected[client, id] = Body(beside, self.buffers)
        else:
            body.beside = Beside(body.beside.size, beside.digest)
        if (client, id) in self._early:
            self._early[client, id].set()

    def forget(self, client: ClientId, id: int) -> None:
        """Take no body for a request any more."""
        body = self._expected.pop((client, id), None)
        if body is not None:
            body.close()

    def begin(self) -> None:
        """Forget what was put in the round before."""
        self._done.clear()

    def routes(self) -> list[web.RouteDef]:
        """Return what clients can do."""
        return [web.put("/vectors/{id}", self.put), web.head("/vectors/{id}", self.head)]

    async def head(self, request: web.Request) -> web.Response:
        """Tell how much of a body has come."""
        client, id = self.client(request), _number(request.match_info["id"])
        if id in self._done.get(client, ()):
            return web.Response(status=204)
        body = self._expected.get((client, id))
        return web.Response(status=404) if body is None else web.Response(headers={"Upload-Offset": str(body.received)})

    async def put(self, request: web.Request) -> web.Response:
        """Take a body, or its rest."""
        client, id = self.client(request), _number(request.match_info["id"])
        if id in self._done.get(client, ()):
            return _refused(204)
        with self.slot(client):
            return await self._take(client, id, request)

    async def _take(self, client: ClientId, id: int, request: web.Request) -> web.Response:
        body = await self._announced(client, id)
        if body is None:
            return _refused(404)
        if body.busy or self._receiving >= SLOTS:
            return _refused(503, RETRY)
        if _offset(request, body.beside.size) != body.received:
            return _refused(416, {"Upload-Offset": str(body.received)})
        body.busy = True
        self._receiving += 1
        try:
            await body.receive(lambda body: poured(request, body))
            if body.received < body.beside.size:
                return _refused(400)
            buffer = await body.finish()
        except (TimeoutError, ClientError, ConnectionError, web.RequestPayloadError):
            return _refused(408)
        except DordisError:
            return _refused(422)
        finally:
            body.busy = False
            self._receiving -= 1
        if self._expected.pop((client, id), None) is None:  # the deadline has passed meanwhile
            self.buffers.give(buffer)
            return _refused(404)
        self._done.setdefault(client, set()).add(id)
        view = memoryview(buffer)[: body.beside.size]
        self._delivered(client, id, HeldHere(view, buffer, self.buffers))
        return web.Response(status=204)

    async def _announced(self, client: ClientId, id: int) -> Body | None:
        """Return what is expected, which may be announced a little later."""
        if (client, id) not in self._expected:
            event = self._early.setdefault((client, id), asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), ANNOUNCED)
            except TimeoutError:
                return None
            finally:
                self._early.pop((client, id), None)
        return self._expected.get((client, id))

    @contextmanager
    def slot(self, client: ClientId) -> Iterator[None]:
        """Hold one of the few transfers that a client may have under way at once, or tell it to come again."""
        if self._taken[client] >= CLIENT_SLOTS:
            raise web.HTTPServiceUnavailable(headers={"Connection": "close", **RETRY})
        self._taken[client] += 1
        try:
            yield
        finally:
            self._taken[client] -= 1

    def is_known(self, request: web.Request) -> bool:
        """Tell whether a request shows the token of a client."""
        return self._holder(request) is not None

    def _holder(self, request: web.Request) -> tuple[ClientId, bytes] | None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return self._tokens.get(bytes.fromhex(given)) if _TOKEN.fullmatch(given) else None

    def holder(self, request: web.Request) -> tuple[ClientId, bytes]:
        """Return the client that a request is from, and its machine, by its token."""
        held = self._holder(request)
        if held is None:
            raise web.HTTPUnauthorized(headers={"Connection": "close"})
        return held

    def client(self, request: web.Request) -> ClientId:
        """Return the client that a request is from."""
        return self.holder(request)[0]


def _number(text: str) -> int:
    if not _ID.fullmatch(text):
        raise web.HTTPNotFound(headers={"Connection": "close"})
    return int(text)


def _offset(request: web.Request, size: int) -> int:
    """Return where a body begins, if it is the rest of one of this size; its length is known before it is read."""
    length = request.content_length
    if length is None:
        raise web.HTTPLengthRequired
    given = request.headers.get("Content-Range")
    match = _RANGE.fullmatch(given) if given is not None else None
    first, last, whole = (int(number) for number in match.groups()) if match else (0, length - 1, length)
    if whole != size or last != size - 1 or length != size - first:
        raise web.HTTPRequestEntityTooLarge(max_size=size, actual_size=length)
    return first


async def poured(request: web.Request, body: Body) -> None:
    """Write the body of a request to where it goes."""
    handler = cast(StraightHandler, request.protocol)  # all connections are made with it
    await handler.pour(request.content, body)


def _refused(status: int, headers: dict[str, str] | None = None) -> web.Response:
    """Answer without having read the body: the connection cannot go on."""
    return web.Response(status=status, headers={"Connection": "close", **(headers or {})})


def check_size(size: int, most: int) -> None:
    """What a client announces is not more than the request allows."""
    if not 0 < size <= most:
        raise MalformedMessage(f"a body of {size} bytes was announced where {most} are the most")
