"""What a deployment costs on loopback with TLS: rounds, the server's CPU and memory, receiving, idle clients.

The server is a process of its own; clients are processes too, some of them with many clients each.
"""

import asyncio
import contextlib
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web

from benchmarks.figure import Figure
from benchmarks.server_process import peak_bytes
from dordis.federation.authority import REGISTRY_FILE, Authority
from dordis.federation.certificates import new_tls_key
from dordis.federation.config import Deadlines
from dordis.federation.identity import PrivateKeys, load_identity, load_server_identity, save_keys
from dordis.federation.membership import SignedRegistry
from dordis.federation.registry import Keys
from dordis.federation.requests import new_request, read_request
from dordis.kernels.packing import add_packed
from dordis.network.client import Address, Participant
from dordis.network.deadlines import Patience
from dordis.network.deploy import DeployedJob, participant
from dordis.network.doors import FederationDoor, FederationPass
from dordis.network.server import Server
from dordis.network.warm import compile_kernels
from dordis.privacy.xnoise import Scheme
from dordis.protocol import Message
from dordis.protocols.parameters import agree_on
from dordis.protocols.secagg import SECAGG
from dordis.protocols.secagg.messages import AdvertiseKeys, Advertisement, CollectInput, MaskedInput
from dordis.rounds.app import AppClient, AppServer, RoundInfo
from dordis.simulation import reading
from dordis.simulation.config import Config

FIGURES = {
    "n12_round_s": Figure("s", at_most=1.0, note="12 client processes, d = 200k, m = 4, malicious: a warm round"),
    "n100_server_cpu_s": Figure("s", at_most=2.0, note="100 clients, d = 1M, 20 bits, semi-honest: CPU of the server"),
    "n100_rss_mb": Figure("MB", at_most=600.0, note="the same: most memory of the server's process"),
    "receive_mb_per_cpu_s": Figure("MB/s", at_least=500.0, note="vectors of 2.5 MB, received and added"),
    "receive_vs_bare": Figure("", at_least=0.7, note="the same, against an aiohttp PUT that drops what comes"),
    "silent_client_deadlines": Figure("", at_most=1.2, note="deadlines that a silent client costs, m = 4"),
    "idle_client_kb": Figure("kB", at_most=350.0, note="1,000 clients, connected: memory of the server for each"),
}

HANG = 3600.0
FORK = multiprocessing.get_context("fork")
SIZE, DIM, BITS, SENDERS = 2_500_000, 1_000_000, 20, 50


class Nothing(AppServer):
    """Sum, and do nothing with it."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    @property
    def dim(self) -> int:
        """Return the length of an update."""
        return self._dim

    def use_output(self, round: RoundInfo, aggregate: Any) -> None:
        """Do nothing."""


class Zero(AppClient):
    """Give an update of zeros."""

    def __init__(self, place: int, dim: int) -> None:
        self._update = np.zeros(dim, np.float32)

    def prepare_data(self, round: RoundInfo, model: Any) -> Any:
        """Return zeros."""
        return self._update


def run(quick: bool) -> dict[str, float]:
    """Measure everything."""
    compile_kernels()
    clients = 20 if quick else 100
    with federation(12) as folder:
        warm = rounds(folder, 12, 2 if quick else 10, ["app.options.dim=200000", "performance.chunks=4"])
    with federation(clients) as folder:
        large = rounds(
            folder,
            clients,
            1,
            [f"app.options.dim={DIM // (10 if quick else 1)}", "protocol.mode=semi-honest", f"privacy.bits={BITS}"],
            processes=4,
        )
    deadline = 2.0
    with federation(5) as folder:
        keys = ["app.options.dim=200000", "performance.chunks=4", f"deployment.deadlines.stage={deadline}"]
        keys += ["protocol.threshold=4", "protocol.tolerance=1"]
        silent = rounds(folder, 5, 3, keys, silent=True)
    receive, bare = receiving(2 if quick else 5)
    return {
        "n12_round_s": min(warm["seconds"][1:]),
        "n100_server_cpu_s": large["cpu"],
        "n100_rss_mb": large["rss"] / 1e6,
        "receive_mb_per_cpu_s": receive,
        "receive_vs_bare": receive / bare,
        "silent_client_deadlines": (silent["seconds"][2] - silent["seconds"][1]) / deadline,
        "idle_client_kb": idle(100 if quick else 1000),
    }


@contextlib.contextmanager
def federation(clients: int) -> Iterator[Path]:
    """Make keys and certificates in a folder of their own."""
    folder = Path(tempfile.mkdtemp(prefix="dordis-benchmark-"))
    authority = Authority.create(folder / "authority", "benchmark", datetime.now(UTC))
    for name in ("server", *(f"c{u}" for u in range(1, clients + 1))):
        private = PrivateKeys(new_tls_key(), None if name == "server" else Keys.generate())
        save_keys(folder / f"{name}.key", private)
        asked = new_request(name, private, ["localhost"] if name == "server" else ())
        (folder / f"{name}.cert").write_bytes(authority.approve(read_request(asked)).pem)
    (folder / "registry.json").write_bytes((folder / "authority" / REGISTRY_FILE).read_bytes())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def settings(clients: int, keys: Sequence[str]) -> Config:
    """Return the configuration of a run of the applications above."""
    given: dict[str, Any] = {
        "app": {"server": "benchmarks.network:Nothing", "client": "benchmarks.network:Zero"},
        "federation": {"clients": clients, "per_round": clients},
        "deployment": {"host": "127.0.0.1", "port": 0, "wait": HANG, "deadlines": {"stage": HANG, "train": HANG}},
    }
    for key in keys:
        given = reading.merged(given, reading.assignment(key))
    return reading.over_defaults(given)


def rounds(
    folder: Path, clients: int, count: int, keys: Sequence[str], processes: int = 0, silent: bool = False
) -> dict[str, Any]:
    """Run rounds; return the seconds of each, and the CPU and the memory of the server."""
    config = settings(clients, [*keys, f"federation.rounds={count}"])
    ours, theirs = FORK.Pipe()
    server = FORK.Process(target=serve, args=(folder, config, theirs))
    server.start()
    port, groups = ours.recv(), processes or clients
    everyone = range(1, clients + 1)
    joined = [
        FORK.Process(target=join, args=(folder, config, port, list(everyone[g::groups]), silent and g == 0))
        for g in range(groups)
    ]
    for process in joined:
        process.start()
    measured = ours.recv()
    server.join()
    for process in joined:
        process.kill()
        process.join()
    return measured


def serve(folder: Path, config: Config, pipe: Any) -> None:
    """Serve a run, and tell what it took."""
    job = DeployedJob.of(config, 0, folder / "server.key", folder / "registry.json")
    under_way = job.start(folder / "runs", reading.written(config))
    under_way.home.listening = pipe.send  # type: ignore[attr-defined]
    stages: list[float] = []
    finished = [done.record.seconds for done in under_way.rounds(lambda stage: stages.append(time.process_time()))]
    cpu = time.process_time() - stages[0]
    pipe.send({"seconds": finished, "cpu": cpu, "rss": peak_bytes()})
    under_way.home.close()  # type: ignore[attr-defined]


def join(folder: Path, config: Config, port: int, clients: list[int], silent: bool) -> None:
    """Join as some clients; a silent one hangs when it is asked for its upload in the third round."""

    async def stay() -> None:
        made = [
            participant(f"https://localhost:{port}", config, 0, folder / f"c{u}.key", folder / "registry.json",
                        folder / f"c{u}.state")
            for u in clients
        ]  # fmt: skip
        if silent:
            made[0].made = falling_silent(made[0].made)
        await asyncio.gather(*(one.stay() for one in made))

    asyncio.run(stay())


def falling_silent(made: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a client that answers nothing from the upload of the third round on."""

    def quiet(welcome: Any) -> Any:
        party = made(welcome)
        handle, number = party.handle, 0

        def handled(request: Message) -> Message:
            nonlocal number
            number = getattr(request, "number", number)
            if number == 3 and isinstance(request, CollectInput):
                time.sleep(HANG)
            return handle(request)

        party.handle = handled
        return party

    return quiet


class Sender:
    """A client that answers with the same vector, at once."""

    def __init__(self, vector: bytes) -> None:
        self._vector = vector

    def handle(self, request: Message) -> Message:
        """Answer."""
        if isinstance(request, CollectInput):
            return MaskedInput(request.chunk, self._vector, bytes(32))
        return Advertisement(bytes(32), bytes(32), bytes(32))


def receiving(repeats: int) -> tuple[float, float]:
    """Return the megabytes that are received in a second of the server's CPU, added up, and dropped by a bare PUT."""
    with federation(SENDERS) as folder:
        ours, theirs = FORK.Pipe()
        server = FORK.Process(target=receive, args=(folder, theirs, repeats))
        server.start()
        port, plain = ours.recv()
        told, tell = FORK.Pipe()
        senders = FORK.Process(target=send, args=(folder, port, plain, told))
        senders.start()
        for _ in range(repeats):
            ours.recv()
            tell.send("bare")
            tell.recv()
            ours.send("done")
        rates: tuple[float, float] = ours.recv()
        server.join()
        senders.kill()
        senders.join()
    return rates


def receive(folder: Path, pipe: Any, repeats: int) -> None:
    """Receive vectors by the exchange, and by a bare PUT, in turn."""
    credentials = load_server_identity(folder / "server.key", datetime.now(UTC))
    members = SignedRegistry.load(folder / "registry.json", credentials.authority).registry
    server = Server(
        FederationDoor(credentials, members, folder / "registry.json"),
        bytes(32),
        Patience(Deadlines(stage=HANG, train=HANG)),
    )
    server.start("127.0.0.1", 0)
    pipe.send((server.port, server.perform(bare_site(server))))
    everyone = server.wait(lambda there: len(there) == SENDERS)
    parameters = agree_on(
        run=bytes(32), index=0, clients=sorted(members), threshold=SENDERS // 2 + 1, tolerance=0, bits=BITS, ends=[DIM],
        scheme=Scheme.ORIG, variances=[1],
    )  # fmt: skip
    list(server.perform(server.exchange(dict.fromkeys(everyone, AdvertiseKeys(parameters)))))
    total, best, bare = np.zeros(DIM, np.uint32), float("inf"), float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for _, reply in server.perform(server.exchange(dict.fromkeys(everyone, CollectInput(0)))):
            add_packed(total, reply.vector, BITS)  # type: ignore[attr-defined]
        best = min(best, time.process_time() - start)
        start = time.process_time()
        pipe.send("bare")
        pipe.recv()
        bare = min(bare, time.process_time() - start)
    pipe.send((SENDERS * SIZE / 1e6 / best, SENDERS * SIZE / 1e6 / bare))
    server.stop()


async def bare_site(server: Server) -> int:
    """Listen for bodies that are read and dropped, on the same loop with the same TLS; return the port."""

    async def dropped(request: web.Request) -> web.Response:
        async for _ in request.content.iter_any():
            pass
        return web.Response()

    app = web.Application()
    app.router.add_put("/{id}", dropped)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server._door.context)
    await site.start()
    return int(runner.addresses[0][1])


def send(folder: Path, port: int, plain: int, pipe: Any) -> None:
    """Be all the senders, and put bodies to the bare site when told to."""
    vector = np.random.default_rng(0).bytes(SIZE)
    passes = [FederationPass(load_identity(folder / f"c{u}.key", datetime.now(UTC))) for u in range(1, SENDERS + 1)]

    async def bare() -> None:
        connector = aiohttp.TCPConnector(limit=8)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def put(u: int) -> None:
                url = f"https://localhost:{plain}/{u}"
                async with session.put(url, data=vector, ssl=passes[0].context) as response:
                    await response.read()

            await asyncio.gather(*(put(u) for u in range(SENDERS)))

    async def stay() -> None:
        address = Address("localhost", port)
        staying = [
            asyncio.ensure_future(Participant(address, own, lambda welcome: Sender(vector), SECAGG).stay())
            for own in passes
        ]
        while await asyncio.to_thread(pipe.recv):
            await bare()
            pipe.send("done")
        await asyncio.gather(*staying)

    asyncio.run(stay())


def idle(clients: int) -> float:
    """Return the kilobytes of the server's memory that a client takes which is connected and does nothing."""
    with federation(clients) as folder:
        ours, theirs = FORK.Pipe()
        server = FORK.Process(target=count, args=(folder, theirs, clients))
        server.start()
        port = ours.recv()
        staying = FORK.Process(target=linger, args=(folder, port, clients))
        staying.start()
        grown: float = ours.recv()
        staying.kill()
        staying.join()
        ours.send("done")
        server.join()
    return grown / clients / 1e3


def count(folder: Path, pipe: Any, clients: int) -> None:
    """Serve clients that are connected; tell by how many bytes the process grew."""
    credentials = load_server_identity(folder / "server.key", datetime.now(UTC))
    members = SignedRegistry.load(folder / "registry.json", credentials.authority).registry
    server = Server(
        FederationDoor(credentials, members, folder / "registry.json"), bytes(32), Patience(Deadlines(stage=HANG))
    )
    server.start("127.0.0.1", 0)
    before = resident()
    pipe.send(server.port)
    server.wait(lambda there: len(there) == clients)
    pipe.send(float(resident() - before))
    pipe.recv()
    server.stop()


def linger(folder: Path, port: int, clients: int) -> None:
    """Be connected."""

    async def stay() -> None:
        address = Address("localhost", port)
        gate = asyncio.Semaphore(50)

        async def one(u: int) -> None:
            own = FederationPass(load_identity(folder / f"c{u}.key", datetime.now(UTC)))
            arrived = asyncio.get_running_loop().create_future()

            def made(welcome: Any) -> Any:
                arrived.set_result(None)
                return Sender(b"")

            async with gate:
                task = asyncio.ensure_future(Participant(address, own, made, SECAGG).stay())
                await arrived
            await task

        await asyncio.gather(*(one(u) for u in range(1, clients + 1)))

    asyncio.run(stay())


def resident() -> int:
    """Return the bytes of memory that this process has now."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
