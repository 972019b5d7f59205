"""Assisted rounds: CPU seconds and bytes of clients, server and helpers, beside SecAgg+, and how they grow."""

import asyncio
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import thread_time

import numpy as np

from benchmarks.aggregation import SPARSE_MANY
from benchmarks.cold_start import call_kernels
from benchmarks.figure import Figure
from benchmarks.rounds import best_of
from benchmarks.rounds import check as check_noise
from benchmarks.server_process import peak_mb
from dordis import wire
from dordis.crypto import signature
from dordis.pipeline import executor as drive
from dordis.pipeline.executor import Exchange
from dordis.protocol import ClientId, Message, OpenCall, Replies, Requests, Role
from dordis.protocols.assisted import ASSISTED, AssistedClient, AssistedHelper, AssistedServer, checks
from dordis.protocols.assisted.messages import Header, Introduce, SendContribution
from dordis.protocols.assisted.parameters import AssistedParameters, Options, agree_with_helpers
from dordis.protocols.noise_addition_and_removal import ChunkOutput, NoisyInput, PrivateServer
from dordis.protocols.parameters import MALICIOUS, RUN_BYTES, common_part, complete
from dordis.protocols.summing import Roster, SigningKeys
from dordis.rounds.arrivals import Arrival, Arrivals, ArrivalStore
from dordis.rounds.privacy_gate import PrivacyGate
from dordis.simulation.exchange import LocalExchange
from reproduce.costs import BITS, VARIANCE
from reproduce.network import NoReplay

HELPERS, FAULTY = 4, 1
ROUND = bytes(RUN_BYTES + 8)
_N1000 = "n_max = 1,000, n_min = 850, 900 come, d = 10^5, b = 20, (4, 1), malicious"
_N10000 = "n_max = 10,000, n_min = 8,500, 9,000 come, k = 86,016, b = 20, (4, 1), malicious"
_PARTIES = (("client_ms", "ms"), ("server_s", "s"), ("receiving_s", "s"), ("helper_s", "s"))
GROWTH_N, GROWTH_D = (100, 1_000, 10_000), (100_000, 1_000_000)

FIGURES = {
    "assisted_n1000_client_ms": Figure("ms", at_most=3, note=f"{_N1000}; median client, all but training and encoding"),
    "assisted_n1000_extra_kb": Figure("kB", at_most=1, note="what a client sends beside the vector"),
    "assisted_n1000_download_kb": Figure("kB", note="parameters, as a client reads them"),
    "assisted_n1000_server_s": Figure("s", at_most=0.5, note="beside receiving"),
    "assisted_n1000_receiving_s": Figure("s", note="storing contributions, and hashing their vectors"),
    "assisted_n1000_helper_s": Figure("s", at_most=0.5, note="the helper that computes most"),
    "assisted_n10000_client_ms": Figure("ms", at_most=3, note=_N10000),
    "assisted_n10000_server_s": Figure("s", note="beside receiving"),
    "assisted_n10000_receiving_s": Figure("s", note="storing contributions, and hashing their vectors"),
    "assisted_n10000_helper_s": Figure("s", note="the helper that computes most"),
    "assisted_n10000_total_s": Figure("s", at_most=20, note="server, hashing included, and four helpers"),
    "assisted_n10000_server_rss_mb": Figure(
        "MB", at_most=400, note="peak memory of a process that has the server only"
    ),
    "assisted_messages_per_client": Figure("", at_most=1, note="of the summing protocol"),
    "assisted_vs_secaggplus_client": Figure("times", note="SecAgg+ over assisted, n = 1,000, d = 10^5, same run"),
    "assisted_vs_secaggplus_server": Figure("times", note="the same for the server; helpers are not in it"),
    **{
        f"assisted_growth_n{n}_{party}": Figure(unit, note="d = 10^4, 90 % come")
        for n in GROWTH_N
        for party, unit in _PARTIES
    },
    **{
        f"assisted_growth_d{d}_{party}": Figure(unit, note="n_max = 100, 90 come")
        for d in GROWTH_D
        for party, unit in _PARTIES
    },
}


@dataclass(frozen=True)
class Setting:
    """A round of `came` clients, of n_min to n_max, with d coordinates."""

    n_max: int
    came: int
    dim: int

    # what `benchmarks.rounds.check` reads
    @property
    def clients(self) -> int:
        """Return n_max."""
        return self.n_max

    @property
    def dropped(self) -> int:
        """Return how many did not come."""
        return self.n_max - self.came

    @cached_property
    def keys(self) -> dict[ClientId, bytes]:
        """Return one signing key for all clients that come: making thousands is not measured."""
        return dict.fromkeys(map(ClientId, range(1, self.came + 1)), bytes(range(32)))

    @cached_property
    def registry(self) -> SigningKeys:
        """Return the public keys."""
        public = signature.public_key(bytes(range(32)))
        helpers = {ClientId(h): signature.public_key(bytes([h]) * 32) for h in range(1, HELPERS + 1)}
        return SigningKeys(dict.fromkeys(self.keys, public), helpers)

    def helpers(self) -> dict[ClientId, AssistedHelper]:
        """Make the helpers."""
        return {h: AssistedHelper(h, secret=bytes([h]) * 32, registry=self.registry) for h in self.registry.helpers}

    def parameters(self, helpers: dict[ClientId, AssistedHelper]) -> AssistedParameters:
        """Agree on the round; its noise tables are built here, before anything is measured."""
        shown = {h: helper.handle(Introduce(ROUND)) for h, helper in helpers.items()}
        common = common_part(
            run=ROUND[:RUN_BYTES], index=0, n_min=self.n_max * 17 // 20, n_max=self.n_max, bits=BITS, ends=[self.dim],
            variances=[VARIANCE], mode=MALICIOUS,
        )  # fmt: skip
        return complete(agree_with_helpers(Options(faulty=FAULTY), common, Roster(introductions=shown)))


N1000, N10000 = Setting(1_000, 900, 100_000), Setting(10_000, 9_000, 86_016)


class Coming:
    """Makes a client whenever it is asked for: its one message is all that is needed of it."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._given = setting, NoisyInput(np.zeros(setting.dim, np.uint32))

    def __contains__(self, client: object) -> bool:
        return client in self._setting.keys

    def __getitem__(self, u: ClientId) -> AssistedClient:
        registry, key = self._setting.registry, self._setting.keys[u]
        return AssistedClient(u, self._given, signing=key, registry=registry, journal=NoReplay())


class TimedStore(ArrivalStore):
    """A store that knows the CPU time it took, and that of the hashing of vectors."""

    seconds = hashing = 0.0

    def add(self, arrival: Arrival) -> None:
        """Store a contribution."""
        start = thread_time()
        super().add(arrival)
        self.seconds += thread_time() - start


@contextmanager
def hashing_timed(store: TimedStore) -> Iterator[None]:
    """Measure the hashing of vectors that are received."""
    verify = checks.check_vector_digest

    def timed(header: Header, vector: bytes | memoryview) -> None:
        start = thread_time()
        verify(header, vector)
        store.hashing += thread_time() - start

    checks.check_vector_digest = timed
    try:
        yield
    finally:
        checks.check_vector_digest = verify


def opened(exchange: Exchange, setting: Setting, store: ArrivalStore) -> Exchange:
    """Return an exchange whose open calls are answered by all clients in turn, and stored."""

    def coming(call: OpenCall) -> Iterator[tuple[ClientId, Message]]:
        for u in setting.keys:
            for _, reply in exchange({u: call.request}):
                call.admit(u, reply)
                yield u, reply

    async def arrive(requests: Requests) -> Replies:
        return coming(requests) if isinstance(requests, OpenCall) else exchange(requests)

    def ask(requests: Requests) -> Replies:
        if isinstance(requests, OpenCall):
            arrivals = Arrivals(store, PrivacyGate(), lambda u: None)  # type: ignore[arg-type,return-value]
            return asyncio.run(arrivals.take(requests, arrive))
        return exchange(requests)

    return ask


@dataclass(frozen=True)
class Costs:
    """CPU seconds of the median client, the server and all helpers; bytes of a client beside its vector."""

    client_s: float
    server_s: float
    storing_s: float
    hashing_s: float
    helpers_s: tuple[float, ...]
    sent: int
    received: int

    def best(self, other: "Costs") -> "Costs":
        """Keep the smaller seconds of two runs."""
        helpers = tuple(map(min, self.helpers_s, other.helpers_s))
        return replace(
            self,
            client_s=min(self.client_s, other.client_s),
            server_s=min(self.server_s, other.server_s),
            storing_s=min(self.storing_s, other.storing_s),
            hashing_s=min(self.hashing_s, other.hashing_s),
            helpers_s=helpers,
        )

    def points(self, name: str) -> dict[str, float]:
        """Return the seconds as figures."""
        return {
            f"{name}_client_ms": 1e3 * self.client_s,
            f"{name}_server_s": self.server_s,
            f"{name}_receiving_s": self.storing_s + self.hashing_s,
            f"{name}_helper_s": max(self.helpers_s),
        }


def play(setting: Setting, folder: Path) -> Costs:
    """Run one round, everyone's input zero, and return what it costs."""
    helpers = setting.helpers()
    parameters, store = setting.parameters(helpers), TimedStore(folder / "arrivals")
    exchange = LocalExchange(Coming(setting), helpers=helpers)
    start = thread_time()
    server = PrivateServer(AssistedServer(parameters, setting.registry), parameters)
    with hashing_timed(store):
        (output,) = drive.run(server, opened(exchange, setting, store))
    spent = thread_time() - start - store.seconds - store.hashing
    check(output, setting)
    clients, helping = exchange.seconds.values(), exchange.helper_seconds
    vector = -(-setting.dim * BITS // 8)
    (folder / "arrivals").unlink()
    return Costs(
        client_s=statistics.median(clients),
        server_s=spent - sum(clients) - sum(helping.values()),
        storing_s=store.seconds,
        hashing_s=store.hashing,
        helpers_s=tuple(helping[h] for h in sorted(helping)),
        sent=max(exchange.sent.values()) - vector,
        received=max(exchange.received.values()),
    )


def check(output: ChunkOutput, setting: Setting) -> None:
    """Make sure that the round did what is measured."""
    check_noise(output, setting)  # type: ignore[arg-type]


def best(count: int, setting: Setting) -> Costs:
    """Play a setting several times and return the best costs."""
    with tempfile.TemporaryDirectory() as name:
        kept = play(setting, Path(name))
        for _ in range(count - 1):
            kept = kept.best(play(setting, Path(name)))
    return kept


def memory(setting: Setting) -> float:
    """Run a round with its server alone in a process; return the most megabytes that it held."""
    helpers, clients = setting.helpers(), Coming(setting)
    parameters = setting.parameters(helpers)

    def answer(u: ClientId, request: Message) -> Message:
        return helpers[u].handle(request) if request.role is Role.HELPER else clients[u].handle(request)

    with tempfile.TemporaryDirectory() as name:
        serve = partial(_serve, setting, wire.encode(parameters), Path(name))
        return peak_mb(serve, answer, ASSISTED.requests)


def _serve(setting: Setting, encoded: bytes, folder: Path, exchange: Exchange) -> Callable[[], None]:
    parameters = wire.decode(encoded, AssistedParameters)
    server = PrivateServer(AssistedServer(parameters, setting.registry), parameters)
    (output,) = drive.run(server, opened(exchange, setting, ArrivalStore(folder / "arrivals")))
    return partial(check, output, setting)


def run(quick: bool) -> dict[str, float]:
    """Measure everything; a quick run leaves out what takes long."""
    call_kernels()
    many = best(1 if quick else 3, N1000)
    values = many.points("assisted_n1000") | {
        "assisted_n1000_extra_kb": many.sent / 1e3,
        "assisted_n1000_download_kb": many.received / 1e3,
        "assisted_messages_per_client": float(
            sum(request.role is Role.CLIENT for request in ASSISTED.requests if request is not SendContribution) + 1
        ),
    }
    values |= compare(many, quick)
    for n in GROWTH_N[: 2 if quick else None]:
        values |= best(1, Setting(n, n * 9 // 10, 10_000)).points(f"assisted_growth_n{n}")
    for d in GROWTH_D:
        values |= best(1 if quick else 2, Setting(100, 90, d)).points(f"assisted_growth_d{d}")
    return values if quick else values | _most()


def compare(many: Costs, quick: bool) -> dict[str, float]:
    """Return how much more SecAgg+ costs; a quick run plays it with 100 clients, which says little."""
    (sparse,) = best_of(1, replace(SPARSE_MANY, clients=100, dropped=5, tolerance=10) if quick else SPARSE_MANY)
    return {
        "assisted_vs_secaggplus_client": sparse.client_s / many.client_s,
        "assisted_vs_secaggplus_server": sparse.server_s / many.server_s,
    }


def _most() -> dict[str, float]:
    """Measure the round of 10,000 clients."""
    most = best(1, N10000)
    return most.points("assisted_n10000") | {
        "assisted_n10000_total_s": most.server_s + most.hashing_s + sum(most.helpers_s),
        "assisted_n10000_server_rss_mb": memory(N10000),
    }


PARTS = {
    "n1000": lambda quick: best(1 if quick else 3, N1000).points("assisted_n1000"),
    "beside": lambda quick: compare(best(1, N1000), quick),
    "n10000": lambda quick: _most(),
}
