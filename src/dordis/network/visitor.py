"""A client of rounds with open arrival: it fetches a task and the model, trains offline, and puts its contribution.

Each step is one HTTPS request on a connection of its own, which is closed after the response.  When the contribution
leaves does not depend on the client's data: `timed_training` returns the update a fixed time after the task was taken.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import ClientResponse, ClientSession, ClientTimeout

from dordis import wire
from dordis.errors import Aborted, DordisError, LoginRefused, MalformedMessage, ProtocolError
from dordis.network.authentication import ExpiryWatch, LoginCredentials, utc_now
from dordis.network.client import wait_to_reconnect
from dordis.network.client_transfers import (
    ATTEMPTS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    STALL,
    Address,
    ServerBusy,
    check_not_busy,
    describe_error,
    read_offset,
)
from dordis.network.downloads import split_body
from dordis.network.log_lines import ClientRoundLog
from dordis.network.messages import SUBPROTOCOL, VERSION_HEADER, Welcome
from dordis.network.spooled_uploads import LENGTH_BYTES
from dordis.network.tasks import LARGEST_TASK, RoundTask, opening_of, read_task, task_tag
from dordis.network.timed_training import OwnerLog
from dordis.network.uploads import LeastRate
from dordis.network.visits import ACCEPTED, CONFLICT, GONE, UNPROCESSABLE
from dordis.owner.manifest_checks import LARGEST as LARGEST_MANIFEST
from dordis.protocol import Message
from dordis.protocols.summing import SummingProtocol
from dordis.rounds.client import Client
from dordis.rounds.invitation import Accepted, SendModel, Train
from dordis.rounds.model import ModelBytes

log = logging.getLogger("dordis.network")

REFUSED = (CONFLICT, UNPROCESSABLE, 403, 413)
"""Status codes by which a server refuses a contribution for good."""
RANGE_NOT_SATISFIABLE = 416
MANIFEST_LIMIT = LARGEST_MANIFEST + (64 << 20)
"""Bytes of the largest manifest that is read; `read_manifest` bounds it by the registry."""


class RunOver(Exception):
    """The server says that the run is over."""


@dataclass
class ConnectedTime:
    """Seconds and requests of one round on which this client was connected."""

    seconds: float = 0.0
    requests: int = 0


class Visitor:
    """A client that visits a server round after round until the run is over or it is refused."""

    def __init__(
        self,
        address: Address,
        credentials: LoginCredentials,
        create_party: Callable[[Welcome], Client],
        protocol: SummingProtocol,
        poll: float,
        failures: OwnerLog | None = None,
        events: Callable[[str], None] = lambda error: None,
        rounds: ClientRoundLog | None = None,
    ) -> None:
        self._address, self._credentials, self._poll = address, credentials, poll
        self.create_party, self._protocol = create_party, protocol
        self._failures, self.events, self._rounds = failures or OwnerLog(), events, rounds or ClientRoundLog()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="dordis-client")
        self._joined: tuple[bytes, Client] | None = None
        self._tag, self._event = "", ""
        self._connected = ConnectedTime()

    async def stay(self, once: bool = False, follow: bool = False) -> None:
        """Visit until the run is over; with `once` until one contribution was taken, with `follow` for ever."""
        watch = asyncio.ensure_future(ExpiryWatch("this client's").watch(lambda: self._credentials.certificate))
        try:
            await self._stay(once, follow)
        finally:
            watch.cancel()

    async def _stay(self, once: bool, follow: bool) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                if await self._visit() and once:
                    return
                await wait_to_reconnect(self._poll)
                pause = FIRST_PAUSE
                continue
            except RunOver:
                self._leave_run()
                if not follow:
                    self._failures.summarise()
                    return
                self._note("the run is over: waiting for the next run of this server")
            except ServerBusy as busy:
                pause = busy.seconds
            except LoginRefused as error:
                self.events(str(error))
                raise
            except DordisError as error:
                self.events(str(error))
                if not follow:
                    raise
                self._note(f"waiting for the next run: {error}")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._note(f"no connection to {self._address}: {describe_error(error)}; trying again")
            await wait_to_reconnect(pause)
            pause = min(2 * pause, max(self._poll, LONGEST_PAUSE))

    def reload(self) -> None:
        """Read key and certificate again, for the next request; keep the old ones if that fails."""
        try:
            self._credentials = self._credentials.reload()
        except DordisError as error:
            log.warning("the certificate was not read again: %s", error)
        else:
            log.info("the certificate was read again, for the next request")

    def stop(self) -> None:
        """Stop; the open round stays in its journal, from which it can be restored."""
        if self._joined is not None:
            self._joined[1].stop()

    def _leave_run(self) -> None:
        if self._joined is not None:
            self._joined[1].close()
        self._joined, self._tag = None, ""

    def _note(self, event: str) -> None:
        """Log why this client gets no task, once for each reason."""
        if event != self._event:
            log.warning("%s", event)
            self.events(event)
        self._event = event

    # One round

    async def _visit(self) -> bool:
        """Look for a new task, and contribute to its round; tell whether a contribution was taken."""
        document = await self._fetch_task()
        if document is None:
            return False
        try:
            task = read_task(document, self._credentials.credentials.authority, utc_now())
        except (ProtocolError, LoginRefused) as error:
            self._note(f"the task of {self._address} is refused, and looked at again later: {error}")
            return False
        client = await self._client(task)  # raises before anything is answered if the owner refuses the run
        self._note_contact()
        info = task.invite.info
        self._rounds.begin(info.run, info.index)
        try:
            contribution = await self._contribution(client, task)
            taken = await self._put(info.index, contribution)
        except (aiohttp.ClientError, OSError, TimeoutError):
            raise  # the round stays in the journal, and the next visit continues it
        except DordisError as error:
            self._rounds.decline(error)
            taken = False
        self._tag = task_tag(document)
        client.close()
        if taken:
            await self._in_worker(self._rounds.take_part)
            log.info("connected for %.2f s in %d requests", self._connected.seconds, self._connected.requests)
        return taken

    def _note_contact(self) -> None:
        self._event = ""
        self.events("")

    async def _fetch_task(self) -> bytes | None:
        """Return the signed task of the open round; None if there is none, or none that is new."""
        self._connected = ConnectedTime()
        headers = {"If-None-Match": self._tag} if self._tag else {}
        async with self._request("GET", "/task", headers=headers) as response:
            if response.status == GONE:
                raise RunOver
            if response.status in (204, 304):
                return None
            return await _read(response, LARGEST_TASK)

    async def _client(self, task: RoundTask) -> Client:
        """Return the client of the task's run; the manifest is fetched once for each run."""
        run = task.invite.info.run
        if self._joined is None or self._joined[0] != run:
            async with self._request("GET", "/manifest") as response:
                manifest = await _read(response, MANIFEST_LIMIT)
            me = int(self._credentials.credentials.client)
            self._joined = (run, self.create_party(Welcome(me, run, manifest, b"")))
            log.info("joined the run as client %d", me)
        return self._joined[1]

    async def _contribution(self, client: Client, task: RoundTask) -> Message:
        """Have the client accept, take the model, train and contribute; the journal continues what was begun."""
        accepted = await self._in_worker(client.handle, task.invite)
        if not isinstance(accepted, Accepted) or not accepted.selected:
            raise Aborted("this client is not selected for the round")
        opening = opening_of(task, self._protocol)
        if client.round is not None and client.round.summing is None:
            if not accepted.has_model:
                for offset, piece in (await self._model(task)).pieces():
                    await self._in_worker(client.handle, SendModel(offset, piece))
            await self._in_worker(client.handle, Train())
        contribution: Message = await self._in_worker(client.handle, opening)
        return contribution

    async def _model(self, task: RoundTask) -> ModelBytes:
        """Return the model of a round; a download that breaks off is resumed."""
        invite, data, attempt = task.invite, bytearray(), 0
        while len(data) < invite.model_bytes:
            headers = {"Range": f"bytes={len(data)}-"} if data else {}
            try:
                async with self._request("GET", f"/model/{invite.model.hex()}", headers=headers) as response:
                    await _append(response, data, invite.model_bytes)
                if len(data) < invite.model_bytes:  # counted: a server could have a client ask for ever
                    raise aiohttp.ClientPayloadError("the server sent only a part of the model")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                attempt += 1
                if attempt == ATTEMPTS or (isinstance(error, aiohttp.ClientResponseError) and error.status < 500):
                    raise
                await asyncio.sleep(min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))
        return ModelBytes.read(invite.dtype, bytes(data))

    async def _put(self, index: int, contribution: Message) -> bool:
        """Put a contribution, as often as it takes; tell whether it was taken, or came too late."""
        frame = wire.encode(contribution)
        body = b"".join((len(frame).to_bytes(LENGTH_BYTES, "big"), frame, wire.bulk_of(contribution)))
        path, offset, pause = f"/contributions/{index}", 0, FIRST_PAUSE
        while True:
            try:
                status, offset = await self._put_rest(path, body, offset)
                if status == ACCEPTED:
                    return True
                if status == GONE:
                    log.warning("the contribution came too late: the round was closed")
                    return False
                check_not_refused(status)
                if status != RANGE_NOT_SATISFIABLE:  # that one says where to continue
                    offset = await self._offset(path, len(body))
            except ServerBusy as busy:
                pause = busy.seconds
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._note(f"the contribution is not at {self._address} yet: {describe_error(error)}; trying again")
                offset = await self._offset(path, len(body))
            await wait_to_reconnect(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _put_rest(self, path: str, body: bytes, offset: int) -> tuple[int, int]:
        """Send a contribution from an offset on; return the HTTP status and the offset to continue from."""
        size = len(body)
        headers = {"Content-Length": str(size - offset)}
        if offset:
            headers["Content-Range"] = f"bytes {offset}-{size - 1}/{size}"
        async with self._request("PUT", path, headers=headers, data=split_body(body, offset)) as response:
            return response.status, read_offset(response.headers, size)

    async def _offset(self, path: str, size: int) -> int:
        """Ask how much of a contribution is there; 0 if the server does not answer."""
        try:
            async with self._request("HEAD", path) as response:
                return read_offset(response.headers, size)
        except (aiohttp.ClientError, OSError, TimeoutError, ServerBusy):
            return 0

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, data: Any = None
    ) -> AsyncIterator[ClientResponse]:
        """Make one request on a connection of its own; raise LoginRefused if version, certificate or member are."""
        began = time.monotonic()
        self._connected.requests += 1
        given = {VERSION_HEADER: SUBPROTOCOL, **(headers or {})}
        connector = aiohttp.TCPConnector(force_close=True)
        timeout = ClientTimeout(total=None, sock_connect=STALL, sock_read=STALL)
        try:
            async with (
                ClientSession(connector=connector, trust_env=True, timeout=timeout, auto_decompress=False) as session,
                session.request(
                    method,
                    self._address.url(path),
                    headers=given,
                    data=data,
                    ssl=self._credentials.context,
                    allow_redirects=False,
                ) as response,
            ):
                await check_admitted(response, method)
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            raise LoginRefused(f"the server's certificate is not accepted: {error.certificate_error}") from None
        finally:
            self._connected.seconds += time.monotonic() - began

    async def _in_worker(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)


async def check_admitted(response: ClientResponse, method: str) -> None:
    """Raise LoginRefused for another version or a refused client, ServerBusy for HTTP 503, errors of a GET as such."""
    check_not_busy(response.status, response.headers)
    if response.status == 426:
        theirs = response.headers.get(VERSION_HEADER, "another version")
        raise LoginRefused(f"the server speaks {theirs}, this client {SUBPROTOCOL}: install the same version of dordis")
    if response.status == 403 and method == "GET":
        reason = (await _read(response, 1 << 12)).decode("ascii", "replace")
        raise LoginRefused(f"the server refused: {''.join(c if c.isprintable() else '?' for c in reason[:200])}")
    if method == "GET" and response.status != GONE:
        response.raise_for_status()
    if 300 < response.status < 304:
        raise aiohttp.ClientConnectionError("the server redirects this client to another address, which is refused")


def check_not_refused(status: int) -> None:
    """Raise ProtocolError if the server refused a contribution for good."""
    if status in REFUSED:
        raise ProtocolError(f"the server refused the contribution (HTTP {status})")


async def _read(response: ClientResponse, limit: int) -> bytes:
    """Return the body of a response; raise MalformedMessage if it is longer than `limit`."""
    data = bytearray()
    await _append(response, data, limit)
    return bytes(data)


async def _append(response: ClientResponse, data: bytearray, limit: int) -> None:
    """Append the body of a response to data; raise MalformedMessage if they are longer than `limit` then."""
    async with LeastRate(STALL) as rate:
        async for piece in response.content.iter_any():
            data += piece
            rate.count(len(piece))
            if len(data) > limit:
                raise MalformedMessage(f"the server sent more than {limit} bytes where at most as many are expected")
