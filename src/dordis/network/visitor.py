"""A client of assisted rounds: it fetches task and model, trains offline, and uploads its contribution.

The *task* is the signed description of the open round.  Task, model and upload are single HTTPS requests
(`client_transfers`).  Before every round the client compares the run's *history*, the server's list of receipts, with
its stored *notes*: in which rounds it took part, and with which parameters.

If `deployment.train_seconds` is set, fixed times hide how long the work on the client's data takes:
`rounds.user_code.TimedTraining` returns the update a fixed time after the training began.  The sum of the records'
gradients, and the encoding, have fixed times, too.  If one of them takes longer, its result is returned after a whole
multiple of its fixed time.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import aiohttp
from msgspec import UNSET, UnsetType

from dordis.errors import Aborted, BeaconNotPublished, DordisError, LoginRefused, ProtocolError
from dordis.network.authentication import LoginCredentials, ServerContact, utc_now
from dordis.network.client_transfers import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    NOT_FOUND,
    Address,
    ConnectedTime,
    ServerBusy,
    VisitorRequests,
    describe_error,
    read_body,
    wait_to_reconnect,
)
from dordis.network.download_endpoint import LARGEST_HISTORY, read_history, read_sums, split_history
from dordis.network.log_lines import ClientRoundLog, round_fields
from dordis.network.messages import LARGEST_TASK, RoundTask, Welcome, opening_of, read_task, task_tag
from dordis.network.visits import GONE
from dordis.owner.manifest_checks import LARGEST as LARGEST_MANIFEST
from dordis.owner.receipts import KeptReceipts, Shown
from dordis.protocol import Message
from dordis.protocols.summing import SummingProtocol
from dordis.rounds.client import Client
from dordis.rounds.invitation import Accepted, SendModel, SumUsed, Train
from dordis.rounds.model import ModelBytes
from dordis.rounds.user_code import OwnerLog

log = logging.getLogger("dordis.network")

MANIFEST_LIMIT = LARGEST_MANIFEST + (64 << 20)
"""Largest size of a manifest in bytes; `read_manifest` bounds it further, by the number of members."""


class RunOver(Exception):
    """The server says that the run is over."""


class Visitor(ServerContact):
    """A client that visits a server round after round, until the run is over or the client is refused."""

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
        receipts: KeptReceipts | None = None,
    ) -> None:
        super().__init__(credentials, events)
        self._address, self._poll, self._receipts = address, poll, receipts
        self._requests = VisitorRequests(address, credentials, self._note)
        self.create_party, self._protocol = create_party, protocol
        self._failures, self._rounds = failures or OwnerLog(), rounds or ClientRoundLog()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="dordis-client")
        self._joined: tuple[bytes, Client] | None = None
        self._tag = ""

    async def _stay(self, once: bool, follow: bool) -> None:
        """Visit until the run is over.

        With `once`, visit until one contribution is accepted; with `follow`, also in the server's next runs, forever.
        """
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
        """Read key and certificate again for the next request; if they cannot be read, keep the present ones."""
        super().reload()
        self._requests.credentials = self.credentials

    def stop(self) -> None:
        """Stop visiting; the open round can be resumed from its journal."""
        if self._joined is not None:
            self._joined[1].stop()

    def _leave_run(self) -> None:
        if self._joined is not None:
            self._joined[1].close()
        self._joined, self._tag = None, ""

    # One round

    async def _visit(self) -> bool:
        """Fetch a new task, if there is one, and contribute to its round; tell whether a contribution was accepted."""
        fetched = await self._fetch_task()
        if fetched is None:
            return False
        document, shown = fetched
        try:
            task = read_task(document, self.credentials.credentials.authority, utc_now())
        except (ProtocolError, LoginRefused) as error:
            self._note(f"the task of {self._address} is refused, and looked at again later: {error}")
            return False
        info, before = task.invite.info, self._joined
        client = await self._client(task)  # raises, before anything is sent, if the owner refuses the run
        if info.index:  # before the first round there is no history
            await self._check_history(client, info.run, shown if before and before[0] == info.run else None)
        self._note_contact()
        self._rounds.begin(info.run, info.index)
        try:
            contribution = await self._contribution(client, task)
            taken = await self._requests.put(info.index, contribution)
        except (aiohttp.ClientError, OSError, TimeoutError):
            raise  # the round stays in the journal, and the next visit continues it
        except BeaconNotPublished as error:
            self._note(f"the task is looked at again later: {error}")
            return False
        except DordisError as error:
            self._rounds.decline(error)
            taken = False
        if taken and self._receipts is not None:
            await self._in_worker(self._receipts.note_acknowledged, info.run, info.index)
        self._tag = task_tag(document)
        client.close()
        if taken:
            await self._in_worker(self._rounds.take_part)
            connected = self._requests.connected
            log.info("connected for %.2f s in %d requests", connected.seconds, connected.requests)
        return taken

    async def _fetch_task(self) -> tuple[bytes, list[Shown] | None] | None:
        """Return the signed task of the open round, and the run's history; the latter is None before this client joins.

        Return None if no round is open for this client, or if this client has finished the task.  Raise RunOver if the
        run is over.
        """
        self._requests.connected = ConnectedTime()
        headers, path = {"If-None-Match": self._tag} if self._tag else {}, "/task"
        if asks := self._receipts is not None and self._joined is not None:
            known = max(self._receipts.read(self._joined[0]).shown, default=-1)
            path = f"/task?after={known}&known={known}"
        async with self._requests.request("GET", path, headers=headers) as response:
            if response.status == GONE:
                raise RunOver
            if response.status in (204, 304):
                return None
            body = await read_body(response, LARGEST_TASK + (LARGEST_HISTORY if asks else 0))
        return split_history(body) if asks else (body, None)

    async def _check_history(self, client: Client, run: bytes, shown: list[Shown] | None) -> None:
        """Raise HistoryContradicted if the server's history contradicts the receipts and notes that this client stored.

        `shown` is the history that came with the task.  If it is None, the whole history is fetched, even if the client
        has no notes: its notes may have been lost.
        """
        if self._receipts is None:
            return
        kept, is_complete = self._receipts.read(run), shown is None
        if shown is None:
            known = max(kept.shown, default=-1)
            async with self._requests.request("GET", f"/receipts?known={known}") as response:
                shown = await read_history(response)
        compare = partial(self._receipts.compare, run, shown, client.members, complete=is_complete, me=client.me)
        await self._in_worker(compare)

    async def _client(self, task: RoundTask) -> Client:
        """Return the client's state machine for the task's run; the manifest is fetched once per run."""
        run = task.invite.info.run
        if self._joined is None or self._joined[0] != run:
            async with self._requests.request("GET", "/manifest") as response:
                manifest = await read_body(response, MANIFEST_LIMIT)
            me = int(self.credentials.credentials.client)
            self._joined = (run, self.create_party(Welcome(me, run, manifest, b"")))
            log.info("joined the run as client %d", me)
        return self._joined[1]

    async def _contribution(self, client: Client, task: RoundTask) -> Message:
        """Accept the invitation, take the model, train, and return the contribution; continue a restored round.

        Raise Aborted if the client is not selected.
        """
        accepted = await self._in_worker(client.handle, task.invite)
        if not isinstance(accepted, Accepted) or not accepted.selected:
            raise Aborted("this client is not selected for the round")
        opening = opening_of(task, self._protocol)
        if client.round is not None and client.round.summing is None:
            await self._take_model(client, task, accepted)
            await self._in_worker(client.handle, Train())
        contribution: Message = await self._in_worker(client.handle, opening)
        return contribution

    async def _take_model(self, client: Client, task: RoundTask, accepted: Accepted) -> None:
        """If the client lacks the model of the round, compute it from missed sums or, if that fails, download it."""
        if not accepted.has_model and not await self._catch_up(client, task, accepted.holds):
            for offset, piece in (await self._model(task)).pieces():
                await self._in_worker(client.handle, SendModel(offset, piece))

    async def _catch_up(self, client: Client, task: RoundTask, held: bytes | UnsetType) -> bool:
        """Let a client compute the round's model from missed sums and its own model, if any; tell whether it did.

        `held` is the digest of the client's own model.
        """
        if held is UNSET:
            return False
        invite, reached = task.invite, held
        try:
            data = await self._requests.download(f"/sums/{invite.model.hex()}?since={held.hex()}", invite.model_bytes)
        except aiohttp.ClientResponseError as error:
            if error.status != NOT_FOUND:
                raise
            return False  # the server does not have the sums since that model
        missed = read_sums(data)
        for one in missed:
            used: SumUsed = await self._in_worker(client.handle, one)
            reached = used.model
        if reached != invite.model:
            log.warning("the sums that this client missed do not lead to the model of the round: fetching the model")
            return False
        fields = round_fields(invite.info.run, invite.info.index)
        log.info("made the model of the round from the sums of %d rounds", len(missed), extra=fields)
        return True

    async def _model(self, task: RoundTask) -> ModelBytes:
        """Download and return the model of a round."""
        invite = task.invite
        data = await self._requests.download(f"/model/{invite.model.hex()}", invite.model_bytes, invite.model_bytes)
        return ModelBytes.read(invite.dtype, data)

    async def _in_worker(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)
