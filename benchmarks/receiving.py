"""What it costs a server to receive vectors: by itself, beside a bare PUT, and in processes that only receive.

The server is a process of its own, and so are its clients, all of them together.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web

from benchmarks.deployed import FORK, HANG, federation
from dordis.federation.config import Deadlines
from dordis.federation.identity import load_identity, load_server_identity
from dordis.federation.membership import SignedRegistry
from dordis.kernels.packing import add_packed
from dordis.network import login
from dordis.network.client import Participant
from dordis.network.deadlines import Patience
from dordis.network.doors import FederationDoor, FederationPass
from dordis.network.server import Server
from dordis.network.transfers import Address
from dordis.privacy.xnoise import Scheme
from dordis.protocol import Message
from dordis.protocols.parameters import agree_on
from dordis.protocols.secagg import SECAGG
from dordis.protocols.secagg.messages import AdvertiseKeys, Advertisement, CollectInput, MaskedInput

SIZE, DIM, BITS, SENDERS = 2_500_000, 1_000_000, 20, 50
PARTS = 2
"""Processes of the senders, so that those which receive do not wait for one that sends: little by little costs more."""
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
    passes = measured(repeats, receivers=0, bare=BARE)
    return [SENDERS * SIZE / 1e6 / min(one[place] for one in passes) for place in (0, 2, 3)]


def two_processes(repeats: int) -> tuple[float, float]:
    """Return the CPU, and the time, of a server with two receive processes over those of one with one."""
    costs: dict[int, list[list[float]]] = {1: [], 2: []}
    for _ in range(2):
        for receivers, passes in costs.items():
            passes += measured(repeats, receivers)
    best = {receivers: [min(one[k] for one in passes) for k in (0, 1)] for receivers, passes in costs.items()}
    return best[2][0] / best[1][0], best[2][1] / best[1][1]


def measured(repeats: int, receivers: int, bare: Sequence[str] = ()) -> list[list[float]]:
    """Have all vectors received so many times; return the server's CPU and the time, and the CPU of bare PUTs."""
    with federation(SENDERS) as folder:
        ours, theirs = FORK.Pipe()
        server = FORK.Process(target=receive, args=(folder, theirs, repeats, receivers, bare))
        server.start()
        port, plain = ours.recv()
        told, tell = FORK.Pipe()
        everyone, parts = range(1, SENDERS + 1), 1 if bare else PARTS
        senders = [
            FORK.Process(target=send, args=(folder, port, plain, told, everyone[k::parts])) for k in range(parts)
        ]
        for process in senders:
            process.start()
        for _ in range(repeats * len(bare)):
            tell.send(ours.recv())
            tell.recv()
            ours.send("done")
        passes: list[list[float]] = ours.recv()
        server.join()
        for process in senders:
            process.kill()
            process.join()
    return passes


def receive(folder: Path, pipe: Any, repeats: int, receivers: int, bare: Sequence[str]) -> None:
    """Receive vectors by the exchange, and by a bare PUT, in turn; the sums are checked."""
    credentials = load_server_identity(folder / "server.key", datetime.now(UTC))
    members = SignedRegistry.load(folder / "registry.json", credentials.authority).registry
    server = Server(
        FederationDoor(credentials, members, folder / "registry.json"),
        bytes(32),
        Patience(Deadlines(stage=HANG, train=HANG)),
        receivers=receivers,
    )
    server.start("127.0.0.1", 0)
    pipe.send((server.port, server.perform(bare_site(login.server_context(credentials)))))
    everyone = server.wait(lambda there: len(there) == SENDERS)
    parameters = agree_on(
        run=bytes(32), index=0, clients=sorted(members), threshold=SENDERS // 2 + 1, tolerance=0, bits=BITS, ends=[DIM],
        scheme=Scheme.ORIG, variances=[1],
    )  # fmt: skip
    list(server.perform(server.exchange(dict.fromkeys(everyone, AdvertiseKeys(parameters)))))
    spent, passes = cpu_of(server), []
    for _ in range(repeats):
        total, start, wall = np.zeros(DIM, np.uint32), spent(), time.perf_counter()
        for _, reply in server.perform(server.exchange(dict.fromkeys(everyone, CollectInput(0)))):
            add_packed(total, reply.vector, BITS)  # type: ignore[attr-defined]
        cost, wall = spent() - start, time.perf_counter() - wall
        check_sum(total)
        passes.append([cost, wall])
        for how in bare:
            start = spent()
            pipe.send(how)
            pipe.recv()
            passes[-1].append(spent() - start)
    pipe.send(passes)
    server.stop()


def check_sum(total: np.ndarray[Any, Any]) -> None:
    """The sum is that of all vectors, however many processes received them."""
    one = np.zeros(DIM, np.uint32)
    add_packed(one, VECTOR, BITS)
    assert np.array_equal(total & (2**BITS - 1), SENDERS * one & (2**BITS - 1))


def cpu_of(server: Server) -> Callable[[], float]:
    """Return what tells the CPU seconds of a server so far, with the processes that receive for it."""
    clocks = [(~remote.process.pid << 3) | 2 for remote in server.uploads.remotes]  # as Linux numbers them
    return lambda: time.process_time() + sum(map(time.clock_gettime, clocks))


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
    passes = [FederationPass(load_identity(folder / f"c{u}.key", datetime.now(UTC))) for u in clients]

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
