"""Watching and verifying runs: a scrape with many idle clients, the live page's CPU, and the verification of a run."""

import http.client
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.deployments import FORK, federation
from benchmarks.figure import Figure
from benchmarks.hostile_clients import HANG, stay
from dordis.config.reading import read_config
from dordis.config.schema import Deadlines
from dordis.identity.keys import load_server_credentials
from dordis.identity.registry import SignedRegistry
from dordis.ledger.verification import verify_run
from dordis.network.authentication import Authenticator, utc_now
from dordis.network.deadlines import AdaptiveDeadlines
from dordis.network.server import Server
from dordis.protocols.encoded_sums import Aggregate
from dordis.records import run_records
from dordis.report.live import LiveRun
from dordis.report.live_server import LivePage
from dordis.rounds.app import AppServer, FixedClient, RoundInfo
from dordis.rounds.watch import AttemptBegan, ClientAnswered, StageBegan, StageEnded
from dordis.runs.run import Run
from dordis.simulation.population import Identities
from dordis.simulation.run import job_with_app

FIGURES = {
    "scrape_ms": Figure("ms", at_most=50.0, note="/metrics with 800 idle clients over TLS, the median of 50"),
    "page_cpu_percent": Figure(
        "%", at_most=5.0, note="of a core: three open pages, and rounds of 200 clients one after the other, 2 s each"
    ),
    "verify_100_rounds_s": Figure("s", at_most=5.0, note="CPU: 20 clients a round, every signature"),
}
STAGES = ("Invite", "Train", "AdvertiseKeys", "ShareKeys", "DeliverShares", "CollectInput", "Agree", "Unmask", "Store")
READERS, ROUND_SECONDS = 3, 2.0


class Nothing(AppServer):
    """A server of short updates that uses no sum."""

    dim = 16

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Use nothing."""


def run(quick: bool) -> dict[str, float]:
    """Measure, and return name -> number."""
    with tempfile.TemporaryDirectory(prefix="dordis-watching-") as folder:
        path, registry = finish_run(Path(folder), 5 if quick else 100)
        began = time.process_time()
        verified = verify_run(run_records.load_run(path), registry)
        seconds = time.process_time() - began
        assert verified.signed_rounds == len(verified.receipts) == (5 if quick else 100)
        return {
            "scrape_ms": scrape(path, 40 if quick else 800),
            "page_cpu_percent": page_cpu(path, 200, 3.0 if quick else 20.0),
            "verify_100_rounds_s": seconds,
        }


def finish_run(folder: Path, rounds: int) -> tuple[Path, Any]:
    """Return a simulated run against a malicious server, with every message, and the registry of its clients."""
    keys = {"clients": 20, "per_round": 20, "rounds": rounds}
    config = read_config(
        keys=[*(f"federation.{name}={value}" for name, value in keys.items()), "protocol.mode=malicious"]
    )
    job = job_with_app(config, Nothing(), lambda u: FixedClient(np.full(Nothing.dim, 0.1)))
    identities = Identities(bytes(32), job.ids)
    under_way = Run.start(job.job, job.home(identities), folder, "")
    under_way.complete()
    return under_way.records.path, identities.registry


def scrape(path: Path, clients: int) -> float:
    """Return the milliseconds of a scrape while clients are connected and idle."""
    with federation(clients) as folder:
        ours, theirs = FORK.Pipe()
        server = FORK.Process(target=serve, args=(folder, path, clients, theirs))
        server.start()
        staying = FORK.Process(target=stay, args=(folder, ours.recv(), range(1, clients + 1)))
        staying.start()
        port, took = ours.recv(), []
        for _ in range(50):
            began = time.perf_counter()
            assert f'dordis_clients_connected{{run="digits"}} {clients}.0' in get(port, "/metrics")
            took.append(1e3 * (time.perf_counter() - began))
        for process in (staying, server):
            process.kill()
            process.join()
    return statistics.median(took)


def serve(folder: Path, path: Path, clients: int, pipe: Any) -> None:
    """Serve clients; tell the port of the page as soon as all are connected."""
    credentials = load_server_credentials(folder / "server.key", utc_now())
    members = SignedRegistry.load(folder / "registry.json", credentials.authority).registry
    authenticator = Authenticator(credentials, members, folder / "registry.json")
    server = Server(authenticator, bytes(32), AdaptiveDeadlines(Deadlines(stage=HANG, train=HANG)))
    server.start("127.0.0.1", 0)
    pipe.send(server.port)
    server.wait(lambda there: len(there) >= clients, HANG)
    page = LivePage(LiveRun(path, connected=server.connected), run_records.load_run(path).manifest)
    page.start("127.0.0.1", 0)
    pipe.send(page.port)
    time.sleep(HANG)


def get(port: int, path: str) -> str:
    """Return what a page answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def page_cpu(path: Path, clients: int, seconds: float) -> float:
    """Return the CPU of events, state and page, with its readers, in percent of a core."""
    live = LiveRun(path)
    page = LivePage(live, run_records.load_run(path).manifest)
    page.start("127.0.0.1", 0)
    for _ in range(READERS):
        threading.Thread(target=get, args=(page.port, "/events"), daemon=True).start()
    everyone, began, cpu, number = tuple(range(clients)), time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        number += 1
        live.watch(AttemptBegan(number, number))
        for stage in STAGES:
            live.watch(StageBegan(stage, everyone, 0))
            for client in everyone:
                live.watch(ClientAnswered(stage, client, 0))
            live.watch(StageEnded(stage, (), 0))
            time.sleep(ROUND_SECONDS / len(STAGES))
    used = 100 * (time.process_time() - cpu) / (time.perf_counter() - began)
    page.stop()
    return used
