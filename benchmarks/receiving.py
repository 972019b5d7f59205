"""CPU that a server spends to receive vectors, compared with a bare aiohttp PUT.

The server is one process, and all clients together are another one.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web

from benchmarks.deployments import FORK, HANG, federation
from dordis.config.schema import Deadlines
from dordis.identity.keys import load_client_credentials, load_server_credentials
from dordis.identity.registry import SignedRegistry
from dordis.kernels.ring import add_packed
from dordis.network import authentication
from dordis.network.authentication import Authenticator, LoginCredentials
from dordis.network.client import Participant
from dordis.network.client_transfers import Address
from dordis.network.deadlines import AdaptiveDeadlines
from dordis.network.server import Server
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import Message
from dordis.protocols.cohort import agree_on
from dordis.protocols.secagg import SECAGG
from dordis.protocols.secagg.messages import AdvertiseKeys, Advertisement, CollectInput, MaskedInput

SIZE, DIM, BITS, SENDERS = 2_500_000, 1_000_000, 20, 100
BARE = ("dropped", "kept")
"""What a bare PUT does with a body."""
AT_ONCE = 8
"""Bare PUTs at a time: more come in smaller pieces, and cost more."""
VECTOR = np.random.default_rng(0).bytes(SIZE)


class Sender:
    """A client that answers with the same vector, at once."""

    def handle(self, request: Message) -> Message:
        """Answer."""
        if isinstance(request, CollectInput):
            return MaskedInput(request.chunk, VECTOR, bytes(32))
        return Advertisement(bytes(32), bytes(32), bytes(32))


def against_bare(repeats: int) -> list[float]:
    """Return the megabytes received in a second of the server's CPU: added up, and dropped and kept by a bare PUT."""
    passes = measured(repeats)
    return [SENDERS * SIZE / 1e6 / min(one[place] for one in passes) for place in range(3)]


def measured(repeats: int) -> list[list[float]]:
    """Let the server receive all vectors `repeats` times; return its CPU for each, and that of both bare PUTs."""
    with federation(SENDERS) as folder:
        ours, theirs = FORK.Pipe()
        server = FORK.Process(target=receive, args=(folder, theirs, repeats))
        server.start()
        port, plain = ours.recv()
        told, tell = FORK.Pipe()
        sender = FORK.Process(target=send, args=(folder, port, plain, told, range(1, SENDERS + 1)))
        sender.start()
        for _ in range(repeats * len(BARE)):
            tell.send(ours.recv())
            tell.recv()
            ours.send("done")
        passes: list[list[float]] = ours.recv()
        server.join()
        sender.kill()
        sender.join()
    return passes


def receive(folder: Path, pipe: Any, repeats: int) -> None:
    """Receive vectors by the exchange, and by a bare PUT, in turn; the sums are checked."""
    credentials = load_server_credentials(folder / "server.key", datetime.now(UTC))
    members = SignedRegistry.load(folder / "registry.json", credentials.authority).registry
    server = Server(
        Authenticator(credentials, members, folder / "registry.json"),
        bytes(32),
        AdaptiveDeadlines(Deadlines(stage=HANG, train=HANG)),
    )
    server.start("127.0.0.1", 0)
    pipe.send((server.port, server.perform(bare_site(authentication.server_context(credentials)))))
    everyone = server.wait(lambda there: len(there) == SENDERS)
    parameters = agree_on(
        run=bytes(32), index=0, clients=sorted(members), threshold=SENDERS // 2 + 1, tolerance=0, bits=BITS, ends=[DIM],
        scheme=Scheme.ORIG, variances=[1],
    )  # fmt: skip
    list(server.perform(server.exchange(dict.fromkeys(everyone, AdvertiseKeys(parameters)))))
    passes = []
    for _ in range(repeats):
        total, start = np.zeros(DIM, np.uint32), time.process_time()
        for _, reply in server.perform(server.exchange(dict.fromkeys(everyone, CollectInput(0)))):
            add_packed(total, reply.vector, BITS)  # type: ignore[attr-defined]
        cost = time.process_time() - start
        check_sum(total)
        passes.append([cost])
        for how in BARE:
            start = time.process_time()
            pipe.send(how)
            pipe.recv()
            passes[-1].append(time.process_time() - start)
    pipe.send(passes)
    server.stop()


def check_sum(total: np.ndarray[Any, Any]) -> None:
    """Check that the sum is that of all vectors."""
    one = np.zeros(DIM, np.uint32)
    add_packed(one, VECTOR, BITS)
    assert np.array_equal(total & (2**BITS - 1), SENDERS * one & (2**BITS - 1))


async def bare_site(context: ssl.SSLContext) -> int:
    """Listen for bodies that aiohttp drops, or keeps until the answer, on the same loop; return the port."""

    async def dropped(request: web.Request) -> web.Response:
        async for _ in request.content.iter_any():
            pass
        return web.Response()

    async def kept(request: web.Request) -> web.Response:
        assert len(await request.read()) == SIZE
        return web.Response()

    app = web.Application(client_max_size=2 * SIZE)
    app.router.add_put("/dropped", dropped)
    app.router.add_put("/kept", kept)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    return int(runner.addresses[0][1])


def send(folder: Path, port: int, plain: int, pipe: Any, clients: Sequence[int]) -> None:
    """Be some of the senders, and put bodies to the bare site when told to."""
    passes = [LoginCredentials(load_client_credentials(folder / f"c{u}.key", datetime.now(UTC))) for u in clients]

    async def bare(sessions: Sequence[aiohttp.ClientSession], how: str) -> None:
        turns = asyncio.Semaphore(AT_ONCE)

        async def put(session: aiohttp.ClientSession) -> None:
            url = f"https://localhost:{plain}/{how}"
            async with turns, session.put(url, data=VECTOR, ssl=passes[0].context) as response:
                await response.read()

        await asyncio.gather(*map(put, sessions))

    async def stay() -> None:
        address = Address("localhost", port)
        staying = [
            asyncio.ensure_future(Participant(address, own, lambda welcome: Sender(), SECAGG).stay()) for own in passes
        ]
        async with AsyncExitStack() as stack:  # every client keeps its connection for the next pass, here as there
            sessions = [await stack.enter_async_context(aiohttp.ClientSession()) for _ in passes]
            while how := await asyncio.to_thread(pipe.recv):
                await bare(sessions, how)
                pipe.send("done")
        await asyncio.gather(*staying)

    asyncio.run(stay())
