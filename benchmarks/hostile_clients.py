"""Hostile clients of a server on loopback: floods of frames, half-open connections, and many idle clients."""

import asyncio
import contextlib
import gc
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.deployments import FORK, HANG, federation
from benchmarks.receiving import BITS, DIM, Sender
from dordis import wire
from dordis.config.schema import Deadlines
from dordis.identity.keys import load_client_credentials, load_server_credentials
from dordis.identity.registry import SignedRegistry
from dordis.network.authentication import Authenticator, LoginCredentials
from dordis.network.client import Participant, new_session
from dordis.network.client_transfers import Address
from dordis.network.deadlines import AdaptiveDeadlines
from dordis.network.messages import MACHINE_BYTES, SUBPROTOCOL, FromServer, Hello
from dordis.network.server import Server
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from dordis.protocols.secagg import SECAGG
from dordis.protocols.secagg.messages import AdvertiseKeys, CollectInput

HONEST, FLOODERS = 12, 2
"""Clients that take part in rounds, and the members after them that flood."""
LONGEST_FLOOD = 20.0
"""Seconds after which a flood that nobody cuts ends."""
HALF_OPEN, WAVES, REOPEN = 2500, 3, 1.0
"""Half-open connections of a wave, waves, and the seconds after which one that was cut is opened again."""
BEGIN = bytes([0x02, 0x80, 0, 0, 0, 0])
"""The first frame of a message, without content."""
FRAGMENTS = bytes([0x00, 0x80, 0, 0, 0, 0]) * 10000
"""Continuation frames without content."""
PINGS = bytes([0x89, 0x80, 0, 0, 0, 0]) * 10000


@contextlib.contextmanager
def server_process(folder: Path) -> Iterator[Any]:
    """Run a server in a process; yield a pipe that takes commands: `round`, `memory`, `cpu` or a number of clients."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=serve, args=(folder, theirs))
    process.start()
    try:
        yield ours
    finally:
        ours.send("stop")
        process.join()


def ask(pipe: Any, command: str | int) -> Any:
    """Send a command to a server process; return its answer."""
    pipe.send(command)
    return pipe.recv()


def serve(folder: Path, pipe: Any) -> None:
    """Serve until told to stop."""
    credentials = load_server_credentials(folder / "server.key", datetime.now(UTC))
    members = SignedRegistry.load(folder / "registry.json", credentials.authority).registry
    authenticator = Authenticator(credentials, members, folder / "registry.json")
    server = Server(authenticator, bytes(32), AdaptiveDeadlines(Deadlines(stage=HANG, train=HANG)))
    server.start("127.0.0.1", 0)
    pipe.send(server.port)
    while (command := pipe.recv()) != "stop":
        if command == "round":
            pipe.send(one_round(server))
        elif command == "memory":
            gc.collect()
            pipe.send(resident())
        elif command == "cpu":
            pipe.send(time.process_time())
        else:
            pipe.send(len(server.wait(lambda there, least=command: len(there) >= least, HANG)))  # type: ignore[misc]
    server.stop()


def one_round(server: Server) -> float:
    """Receive the vectors of the honest clients; return the seconds."""
    everyone = range(1, HONEST + 1)
    parameters = agree_on(
        run=bytes(32), index=0, clients=everyone, threshold=HONEST // 2 + 1, tolerance=0, bits=BITS, ends=[DIM],
        scheme=Scheme.ORIG, variances=[1],
    )  # fmt: skip
    began = time.perf_counter()
    for request in (AdvertiseKeys(parameters), CollectInput(0)):
        replies = list(server.perform(server.exchange(dict.fromkeys(everyone, request))))  # type: ignore[arg-type]
        assert len(replies) == HONEST
    return time.perf_counter() - began


def resident() -> int:
    """Return the bytes of memory that this process has now."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def login(folder: Path, u: int) -> LoginCredentials:
    """Return the credentials of a member."""
    return LoginCredentials(load_client_credentials(folder / f"c{u}.key", datetime.now(UTC)))


def stay(folder: Path, port: int, clients: range) -> None:
    """Be connected as some clients, and answer requests."""

    async def everyone() -> None:
        gate = asyncio.Semaphore(50)

        async def one(u: int) -> None:
            arrived = asyncio.get_running_loop().create_future()

            def made(welcome: Any) -> Any:
                if not arrived.done():
                    arrived.set_result(None)
                return Sender()

            async with gate:
                participant = Participant(Address("localhost", port), login(folder, u), made, SECAGG)
                task = asyncio.ensure_future(participant.stay())
                await arrived
            await task

        await asyncio.gather(*(one(u) for u in clients))

    asyncio.run(everyone())


# Floods of frames


def floods(quick: bool) -> dict[str, float]:
    """Return the seconds after which floods of pings and fragments are cut, and what they do to honest rounds."""
    count = 5 if quick else 20
    with federation(HONEST + FLOODERS) as folder, server_process(folder) as pipe:
        port = pipe.recv()
        honest = FORK.Process(target=stay, args=(folder, port, range(1, HONEST + 1)))
        honest.start()
        ask(pipe, HONEST)
        rounds(pipe, 2)
        calm = rounds(pipe, count)
        cuts, disturbed = [], []
        for place, frames in enumerate((PINGS, FRAGMENTS), start=1):
            ours, theirs = FORK.Pipe()
            flooder = FORK.Process(target=flood, args=(folder, port, HONEST + place, frames, theirs))
            flooder.start()
            ours.recv()
            disturbed += rounds(pipe, count)
            cuts.append(ours.recv())
            flooder.kill()
            flooder.join()
        honest.kill()
        honest.join()
    ratio = statistics.median(disturbed) / statistics.median(calm)
    return {"ping_flood_cut_s": cuts[0], "fragment_flood_cut_s": cuts[1], "flood_round_ratio": ratio}


def rounds(pipe: Any, count: int) -> list[float]:
    """Run rounds; return the seconds of each."""
    return [ask(pipe, "round") for _ in range(count)]


def flood(folder: Path, port: int, u: int, frames: bytes, pipe: Any) -> None:
    """Flood the server as a member; tell when it begins and after how many seconds it is cut; then try to log in."""

    async def act() -> None:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await connected(folder, port, u, flooding)
        while True:  # a banned member that comes again and again
            with contextlib.suppress(aiohttp.ClientError, OSError, TypeError):
                await connected(folder, port, u, flooding)
            await asyncio.sleep(0.2)

    async def flooding(control: aiohttp.ClientWebSocketResponse) -> None:
        pipe.send("begun")
        began = time.perf_counter()
        transport = control._conn.transport  # type: ignore[attr-defined]
        transport.write(BEGIN if frames is FRAGMENTS else b"")
        while not transport.is_closing() and time.perf_counter() - began < LONGEST_FLOOD:
            transport.write(frames)
            await asyncio.sleep(0)
            with contextlib.suppress(ConnectionError):
                await control._writer.protocol._drain_helper()
        pipe.send(time.perf_counter() - began)

    asyncio.run(act())


async def connected(
    folder: Path, port: int, u: int, act: Callable[[aiohttp.ClientWebSocketResponse], Awaitable[None]]
) -> None:
    """Log in as a member, and act on the control connection."""
    base, own = f"https://localhost:{port}", login(folder, u)
    options: dict[str, Any] = {"protocols": (SUBPROTOCOL,), "ssl": own.context, "autoping": False}
    async with new_session() as session:
        async with session.ws_connect(f"{base}/login", **options) as control:
            await control.receive()
            await control.send_bytes(wire.encode(Hello(b"", bytes(MACHINE_BYTES))))
            welcome: Any = wire.decode((await control.receive()).data, FromServer)  # type: ignore[arg-type]
        headers = {"Authorization": f"Bearer {welcome.token.hex()}"}
        async with session.ws_connect(f"{base}/control", headers=headers, **options) as control:
            await act(control)


# Half-open connections


def half_open(quick: bool) -> dict[str, float]:
    """Return the slowest honest log-in among half-open connections, and the memory after the third wave of them."""
    count = HALF_OPEN // 10 if quick else HALF_OPEN
    with federation(WAVES + 1) as folder, server_process(folder) as pipe:
        port = pipe.recv()
        memory, logins = [], []
        for wave in range(1, WAVES + 1):
            ours, theirs = FORK.Pipe()
            attacker = FORK.Process(target=stay_half_open, args=(folder, port, count, theirs))
            attacker.start()
            ours.recv()
            began = time.perf_counter()
            client = FORK.Process(target=stay, args=(folder, port, range(wave, wave + 1)))
            client.start()
            ask(pipe, 1)
            logins.append(time.perf_counter() - began)
            client.kill()
            client.join()
            attacker.kill()
            attacker.join()
            time.sleep(3.0)  # the server closes what is left
            memory.append(ask(pipe, "memory"))
    return {"half_open_login_s": max(logins), "half_open_memory_ratio": memory[-1] / memory[0]}


def stay_half_open(folder: Path, port: int, count: int, pipe: Any) -> None:
    """Keep connections open without a request: a third without TLS, a third with TLS, a third with half a header."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * HALF_OPEN,) * 2)
    context = login(folder, WAVES + 1).context

    async def hold(kind: int) -> None:
        options: dict[str, Any] = {"ssl": context, "server_hostname": "localhost"} if kind else {}
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("localhost", port, **options)
                writer.write(b"GET /login HTTP/1.1\r\nHost: " if kind == 2 else b"")
                await reader.read()
                writer.close()
            await asyncio.sleep(REOPEN)

    async def everything() -> None:
        holding = [asyncio.ensure_future(hold(k % 3)) for k in range(count)]
        await asyncio.sleep(REOPEN)
        pipe.send("begun")
        await asyncio.gather(*holding)

    asyncio.run(everything())


# Idle clients


def idle(clients: int, seconds: float) -> dict[str, float]:
    """Return the kilobytes of the server's memory for each connected client, and its CPU in percent of a core."""
    with federation(clients) as folder, server_process(folder) as pipe:
        port = pipe.recv()
        before = ask(pipe, "memory")
        staying = FORK.Process(target=stay, args=(folder, port, range(1, clients + 1)))
        staying.start()
        ask(pipe, clients)
        grown, began = ask(pipe, "memory") - before, ask(pipe, "cpu")
        time.sleep(seconds)
        percent = 100 * (ask(pipe, "cpu") - began) / seconds
        staying.kill()
        staying.join()
    return {"idle_client_kb": grown / clients / 1e3, "idle_cpu_percent": percent}
