"""Whole runs from a seed, by their digests: what every client was sent and answered, the ledger, the records.

A change that is meant to leave rounds as they are is compared with these; see `tests/vectors/make_frozen.py`.  Every
party draws from a stream of its own, so that the order in which clients compute is no part of a digest.  The run id is
given, not hashed from the manifest: what a manifest says in words may change.
"""

import asyncio
import hashlib
import json
import math
import tempfile
from asyncio import BaseEventLoop
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy import special

from dordis import wire
from dordis.config.reading import read_config
from dordis.errors import DordisError
from dordis.ledger.ledger import Ledger
from dordis.pipeline.executor import Exchange
from dordis.protocol import ClientId, Message, Requests
from dordis.records.run_records import LEDGER, METRICS, RECEIPTS, ROUNDS, RunRecords, timestamp
from dordis.rounds.engine import RoundRunner
from dordis.runs.run import Run, manifest_of
from dordis.simulation.population import Identities, SimulatedHome
from dordis.simulation.run import prepare
from tests import seeded_randomness
from tests.vectors.make_transcripts import Stream

VOLATILE = ("started", "seconds", "stages")
"""Fields of a round's record that are times."""

COMMON = (
    "app.server=tests.simulation.toys:Server",
    "app.client=tests.simulation.toys:Client",
    "performance.threads=1",
    "privacy.delta=1e-5",
)

AXES: dict[str, dict[str, tuple[str, ...]]] = {
    "protocol": {
        "secagg": ("protocol.use=secagg",),
        "secagg+": ("protocol.use=secagg+",),
        "plaintext": ("protocol.use=plaintext",),
    },
    "mode": {"malicious": ("protocol.mode=malicious",), "semi-honest": ("protocol.mode=semi-honest",)},
    "noise": {
        "single": ("privacy.noise.kind=xnoise",),
        "exact": ("privacy.noise.kind=xnoise", "privacy.noise.scheme=exact"),
        "orig": ("privacy.noise.kind=orig",),
        "conservative": ("privacy.noise.kind=conservative",),
        "early": ("privacy.noise.kind=early",),
        "none": ("privacy.noise.kind=none",),
        "central": ("privacy.noise.kind=central",),
        "local": ("privacy.noise.kind=local",),
        "rebasing": ("privacy.noise.kind=rebasing",),
        "ddgauss": ("privacy.noise.kind=orig", "privacy.mechanism=ddgauss"),
    },
    "fidelity": {"full": ("simulation.fidelity=full",), "ideal": ("simulation.fidelity=ideal",)},
    "folding": {
        "off": ("privacy.projection=off",),
        "fixed": ("privacy.projection=64",),
        "adaptive": ("privacy.projection=adaptive",),
    },
    "clip": {
        "fixed": ("privacy.clip=1.0",),
        "quantile": ('privacy.clip={kind="quantile", start=0.5}',),
    },
    "selection": {
        "balanced": ("federation.selection=balanced",),
        "uniform": ("federation.selection=uniform",),
        "vrf": ("federation.selection=vrf",),
    },
    "dropout": {
        "nobody": ("simulation.dropout.kind=none",),
        "some": ("simulation.dropout.kind=rate", "simulation.dropout.rate=0.15"),
        "many": ("simulation.dropout.kind=rate", "simulation.dropout.rate=0.35", "federation.tries=2"),
    },
    "chunks": {"1": ("performance.chunks=1",), "3": ("performance.chunks=3",)},
    "size": {
        "small": ("federation.clients=14", "federation.per_round=10", "federation.rounds=2", "app.options.dim=70"),
        "long": ("federation.clients=8", "federation.per_round=5", "federation.rounds=2", "app.options.dim=17000"),
        "wide": ("federation.clients=70", "federation.per_round=60", "federation.rounds=1", "app.options.dim=24"),
    },
}
"""What is frozen of a configuration, and the settings that each choice stands for."""

Choice = dict[str, str]
"""One choice on every axis."""


def settings(choice: Mapping[str, str]) -> list[str]:
    """Return the settings of a configuration."""
    return [*COMMON, *(key for axis, value in choice.items() for key in AXES[axis][value])]


@dataclass
class Transcript:
    """What every client was sent and answered, chunk by chunk, in its own order: chunks overlap."""

    lines: dict[tuple[int, int], list[tuple[str, str]]] = field(default_factory=dict)
    """By client and chunk, -1 for what is of none."""

    def tap(self, exchange: Exchange) -> Exchange:
        """Write down what goes through an exchange."""

        def deliver(requests: Requests) -> Iterator[tuple[ClientId, Message]]:
            for u, request in requests.items():
                if not request.ahead:
                    self.write(u, request, request)
            for u, reply in exchange(requests):
                self.write(u, requests[u], reply)
                yield u, reply

        return deliver

    def write(self, u: ClientId, request: Message, message: Message) -> None:
        """Add a request or the reply to it, as it is on the wire, with its bulk."""
        data = wire.encode(message) + bytes(wire.bulk_of(message))
        of_chunk = self.lines.setdefault((int(u), getattr(request, "chunk", -1)), [])
        of_chunk.append((type(message).__name__, digest(data)))

    def digest(self) -> str:
        """Return one digest of all messages."""
        return digest(json.dumps(sorted(self.lines.items())).encode())


@dataclass(frozen=True)
class TappedHome(SimulatedHome):
    """A home whose messages are written down."""

    transcript: Transcript = field(default_factory=Transcript)

    def open(self, *arguments: Any, **options: Any) -> RoundRunner:
        """Put the transcript before the exchange."""
        return super().open(*arguments, tap=self.transcript.tap, **options)


def digest(*parts: bytes) -> str:
    """Return 16 bytes of SHA-256, in hex."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


def freeze(choice: Mapping[str, str], number: int) -> tuple[dict[str, Any], Transcript]:
    """Run a configuration from a seed; return what is frozen of it, and the transcript."""
    seed = hashlib.sha256(b"frozen %d" % number).digest()
    seeded_randomness.install(f"frozen {number}")  # for whatever is not drawn from a stream
    simulated = prepare(read_config(keys=settings(choice)))
    home = TappedHome(
        simulated.job,
        simulated.config.simulation,
        simulated.client,
        Identities(seed, simulated.ids),
        entropy=Stream(seed, 0),
        entropy_of=streams(seed),
    )
    with tempfile.TemporaryDirectory() as folder:
        records = RunRecords.create(Path(folder), manifest_of(simulated.job, home, timestamp()), "")
        records.id = seed
        ledger = Ledger.create(records.path / LEDGER, seed, simulated.job.design.budget)
        run = Run(simulated.job, records, home, ledger if simulated.job.design.proves else None)
        with patch.object(BaseEventLoop, "run_in_executor", in_this_thread):
            ended = end(run.rounds())
        frozen = {
            "ended": ended,
            "rounds": run.done,
            "messages": sum(map(len, home.transcript.lines.values())),
            "transcript": home.transcript.digest(),
            "ledger": digest((records.path / LEDGER).read_bytes()),
            "records": digest(*map(without_times, lines(records.path / ROUNDS)), *lines(records.path / METRICS)),
            "receipts": digest(*(path.read_bytes() for path in sorted((records.path / RECEIPTS).glob("*.json")))),
            "model": digest(*(np.ascontiguousarray(part).tobytes() for part in simulated.job.app.state().values())),
        }
    return frozen, home.transcript


def in_this_thread(
    loop: BaseEventLoop, executor: None, work: Callable[..., Any], *arguments: Any
) -> asyncio.Future[Any]:
    """Compute here what an event loop gives to threads: then chunks overlap in one order only."""

    async def compute() -> Any:
        return work(*arguments)

    return loop.create_task(compute())


def streams(seed: bytes) -> Callable[[ClientId], Stream]:
    """Return what gives every client a stream of its own."""
    return lambda u: Stream(seed, int(u))


def end(rounds: Iterable[Any]) -> str:
    """Run all rounds; return what ended them, if anything did before the last."""
    try:
        for _ in rounds:
            pass
    except DordisError as error:
        return type(error).__name__
    return ""


def lines(path: Path) -> list[bytes]:
    """Return the lines of a file, of which there may be none."""
    return path.read_bytes().splitlines() if path.exists() else []


def without_times(line: bytes) -> bytes:
    """Return a round's record without times, and without the words of errors."""
    record = {name: value for name, value in json.loads(line).items() if name not in VOLATILE}
    record["failures"] = [
        {name: value for name, value in failed.items() if name != "reason"} for failed in record.get("failures", [])
    ]
    return json.dumps(record).encode()


def arithmetic() -> str:
    """Return a digest of what this machine's floating point gives: plans follow from it, to the last bit."""
    x = np.linspace(0.01, 6.0, 997)
    exact = [f(v) for v in x.tolist() for f in (math.exp, math.log, math.erfc, math.sqrt, math.sin)]
    arrays = (special.ndtr(-x), special.log_ndtr(-x), special.ndtri(x / 7), special.gammaln(x), np.exp(x), np.log(x))
    sums = [np.array([part.sum(), part @ x, np.linalg.norm(part)]) for part in arrays]
    return digest(np.array(exact).tobytes(), *(part.tobytes() for part in (*arrays, *sums)))
