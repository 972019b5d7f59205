"""The pipeline: predicted and real round times, in threads and in virtual time; the server's memory.

Stage times come from other rounds than those that are predicted; in virtual time from shorter ones, by the model.  In
threads it is the clock on the wall that counts, and other load shows: rounds are repeated in turn, the fastest kept.
"""

import asyncio
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from benchmarks import simulated_costs
from benchmarks.cold_start import call_kernels
from benchmarks.figure import Figure
from benchmarks.memory_in_flight import InFlight
from dordis.config.schema import Config, Federation
from dordis.pipeline.executor import AsyncExchange, Timeline
from dordis.pipeline.performance_model import Profile
from dordis.pipeline.planner import MOST_CHUNKS, plan_chunks, schedule_stages
from dordis.protocol import ClientId, Message, Replies, Requests, Resource
from dordis.rounds.engine import RoundEngine
from dordis.simulation.exchange import LocalExchange
from dordis.simulation.profiling import Bench, Hardware
from dordis.simulation.run import prepare

TimedRound = Callable[[int, int], Timeline]
"""Runs a round of so many coordinates in so many chunks."""

CLIENTS = 10
SLOW_PHONES = Hardware(slowness=20.0)
"""The clients' processors matter as much as their links."""
NUMBERS = (1, 2, 4, 8)
PROFILED = (250_000, 500_000)
PREDICTED = 1_000_000
LINK = 40e6
"""Bits per second of a link that takes its time."""
CASES = 200
EXACT = 1e-9
LITTLE = InFlight(clients=8, dim=1_000_000, chunks=8)
MUCH = InFlight(clients=8, dim=9_000_000, chunks=8)
ALONE = InFlight(clients=8, dim=9_000_000, chunks=1)
CROWD = InFlight(clients=16, dim=9_000_000, chunks=8)

_ROUNDS = f"{CLIENTS} clients in this process, d = 10^6, five stages; fastest"
FIGURES = {
    **{f"pipeline_threads_m{m}_s": Figure("s", note=f"in threads, m = {m}; {_ROUNDS}") for m in NUMBERS},
    **{f"pipeline_threads_m{m}_predicted_s": Figure("s", note="planned from stages of other rounds") for m in NUMBERS},
    "pipeline_threads_error": Figure("relative", at_most=0.25, note="the worst of these four"),
    **{f"pipeline_links_m{m}_s": Figure("s", note=f"the same with links of 40 Mbps, m = {m}") for m in NUMBERS},
    "pipeline_links_error": Figure("relative", at_most=0.25, note="the worst of these four"),
    "pipeline_links_speedup": Figure("times", note="the best of them over one chunk"),
    "pipeline_virtual_error": Figure(
        "relative",
        at_most=0.05,
        note="the same in virtual time, the model fitted to rounds of 2.5 and 5 10^5",
    ),
    **{
        f"modelled_over_real_m{m}": Figure(
            "times", at_least=0.8, at_most=1.2, note=f"a round by measured costs over one of real parties, m = {m}"
        )
        for m in simulated_costs.NUMBERS
    },
    "planner_equals_brute_force": Figure(
        "relative", at_most=EXACT, note="largest difference to the appendix's recursion in exact numbers, m in [20]"
    ),
    "rss_m1_d9M_mb": Figure("MB", note="peak memory of the server's process, 8 clients, one chunk"),
    "rss_m8_d9M_mb": Figure("MB", note="the same, 8 chunks in flight"),
    "rss_m8_over_m1": Figure("times", at_most=1.1, note="chunks in flight do not add up to more than the vector"),
    "rss_m8_n16_over_n8": Figure("times", at_most=1.1, note="the server never holds a vector for each client"),
    "rss_m8_d1M_mb": Figure("MB", note="8 chunks in flight, d = 10^6"),
    "rss_m8_bytes_per_coordinate": Figure("bytes", at_most=32, note="what the server's memory grows by with d"),
}


def run(quick: bool) -> dict[str, float]:
    """Measure everything; a quick run repeats less and leaves out the long vectors."""
    call_kernels()
    bench = bench_of(SLOW_PHONES)
    families = (
        _threads(bench, quick),
        _links(bench, quick),
        _virtual(bench, quick),
        {} if quick else _modelled(),
        _planner(),
        _memory(quick),
    )
    return {name: value for family in families for name, value in family.items()}


def bench_of(hardware: Hardware) -> Bench:
    """Return rounds of the default configuration with few clients."""
    federation = Federation(clients=2 * CLIENTS, per_round=CLIENTS, rounds=5)
    return Bench(prepare(Config(federation=federation)), hardware, PREDICTED)


def _modelled() -> dict[str, float]:
    return {f"modelled_over_real_m{m}": ratio for m, ratio in simulated_costs.modelled_over_real().items()}


def _threads(bench: Bench, quick: bool) -> dict[str, float]:
    """Predict rounds in threads, all clients in this process, where they compete for its cores."""
    predicted, actual = compare(bench.real, 1 if quick else 12)
    return {
        **{f"pipeline_threads_m{m}_s": actual[m] for m in NUMBERS},
        **{f"pipeline_threads_m{m}_predicted_s": predicted[m] for m in NUMBERS},
        "pipeline_threads_error": worst(predicted, actual),
    }


def _links(bench: Bench, quick: bool) -> dict[str, float]:
    """Predict the same behind links that take their time."""
    predicted, actual = compare(lambda dim, m: bench.timed(dim, m, behind_links), 1 if quick else 4)
    return {
        **{f"pipeline_links_m{m}_s": actual[m] for m in NUMBERS},
        "pipeline_links_error": worst(predicted, actual),
        "pipeline_links_speedup": actual[1] / min(actual.values()),
    }


def compare(play: TimedRound, repeats: int) -> tuple[dict[int, float], dict[int, float]]:
    """Return the seconds predicted and taken, by number of chunks.

    Rounds are run in turn; of each kind, every other one tells the stage times, and the rest is predicted from them.
    """
    told: dict[int, list[Timeline]] = {m: [] for m in NUMBERS}
    rest: dict[int, list[Timeline]] = {m: [] for m in NUMBERS}
    for place in range(1 + 2 * repeats):
        for m in NUMBERS:
            timeline = play(PREDICTED, m)
            if place > 0:
                (told if place % 2 else rest)[m].append(timeline)
    predicted = {m: _foretold(fastest(timelines)) for m, timelines in told.items()}
    return predicted, {m: fastest(timelines).completion for m, timelines in rest.items()}


def behind_links(clients: LocalExchange, **options: Any) -> RoundEngine:
    """Run rounds in threads whose messages take as long as on a link, by the clock on the wall."""
    return RoundEngine(slowed(clients), **options)


def slowed(clients: LocalExchange) -> AsyncExchange:
    """Return an exchange in which every client has a link of its own; what is sent to all waits for the slowest."""
    turns: defaultdict[ClientId, threading.Lock] = defaultdict(threading.Lock)

    def handle(requests: Requests) -> tuple[list[tuple[ClientId, Message]], int]:
        replies: list[tuple[ClientId, Message]] = []
        most = 0
        for u, request in requests.items():
            with turns[u]:
                before = clients.sent[u] + clients.received[u]
                replies += clients({u: request})
                most = max(most, clients.sent[u] + clients.received[u] - before)
        return replies, most

    async def exchange(requests: Requests) -> Replies:
        replies, most = await asyncio.to_thread(handle, requests)
        await asyncio.sleep(8 * most / LINK)
        return replies

    return exchange


def fastest(timelines: Iterable[Timeline]) -> Timeline:
    """Return the round that was disturbed least: other load only adds time."""
    return min(timelines, key=lambda timeline: timeline.completion)


def _foretold(timeline: Timeline) -> float:
    """Return the planned completion of a round whose stages take what those of another one took, on average."""
    seconds = [statistics.mean(durations) for durations in timeline.stage_seconds]
    m = len(timeline.stage_seconds[0])
    return schedule_stages(timeline.resources, seconds, m, timeline.setup_seconds).completion


def _virtual(bench: Bench, quick: bool) -> dict[str, float]:
    """Fit the model to short rounds, and predict long ones."""
    kinds = [(dim, m) for dim in (*PROFILED, PREDICTED) for m in NUMBERS]
    played = [{kind: bench.virtual(*kind) for kind in kinds} for _ in range(2 if quick else 9)][1:]
    best = {kind: fastest(each[kind] for each in played) for kind in kinds}
    profile = Profile()
    for dim in PROFILED:
        for m in NUMBERS:
            profile = profile.observe(dim, best[dim, m].setup_seconds, best[dim, m].stage_seconds)
    model, resources = profile.fit(), best[kinds[0]].resources
    predicted = {
        m: schedule_stages(resources, model.stage_seconds(PREDICTED, m), m, model.setup.seconds(m)).completion
        for m in NUMBERS
    }
    return {"pipeline_virtual_error": worst(predicted, {m: best[PREDICTED, m].completion for m in NUMBERS})}


def worst(predicted: dict[int, float], actual: dict[int, float]) -> float:
    """Return the largest relative error."""
    return max(abs(predicted[m] / actual[m] - 1) for m in actual)


def _planner() -> dict[str, float]:
    """Plan random workflows, and find the best number of chunks again by the paper's recursion."""
    rng = np.random.default_rng(1)
    differences = []
    for _ in range(CASES):
        resources = [Resource.SERVER]
        while len(resources) < rng.integers(1, 7):
            resources.append(others(resources[-1])[rng.integers(2)])
        terms = rng.uniform(0.0, [1.0, 0.05, 0.2], (len(resources), 3))
        seconds = {m: terms @ [1 / m, m, 1.0] for m in range(1, MOST_CHUNKS + 1)}
        found = plan_chunks(resources, lambda m: seconds[m].tolist())  # noqa: B023  called at once
        exact = min(finish(resources, [Fraction(each) for each in seconds[m].tolist()], m) for m in seconds)
        differences.append(abs(float(Fraction(found.schedule.completion) / exact - 1)))
    return {"planner_equals_brute_force": max(differences)}


def others(resource: Resource) -> list[Resource]:
    """Return the two other resources."""
    return [each for each in Resource if each is not resource]


def finish(resources: Sequence[Resource], tau: Sequence[Fraction], m: int) -> Fraction:
    """Return f_{a,m} of appendix C, word for word; stages and chunks count from 0."""

    @cache
    def f(s: int, c: int) -> Fraction:
        o = f(s - 1, c) if s > 0 else Fraction(0)
        return max(o, r(s, c)) + tau[s]

    def r(s: int, c: int) -> Fraction:
        if c > 0:
            return f(s, c - 1)
        before = [i for i in range(s) if resources[i] is resources[s]]
        return f(max(before), m - 1) if before else Fraction(0)

    return f(len(resources) - 1, m - 1)


def _memory(quick: bool) -> dict[str, float]:
    """Look at the server's process while chunks are in flight."""
    little = LITTLE.peak_mb()
    figures = {"rss_m8_d1M_mb": little}
    if quick:
        return figures
    alone, much, crowd = (setting.peak_mb() for setting in (ALONE, MUCH, CROWD))
    return figures | {
        "rss_m1_d9M_mb": alone,
        "rss_m8_d9M_mb": much,
        "rss_m8_over_m1": much / alone,
        "rss_m8_n16_over_n8": crowd / much,
        "rss_m8_bytes_per_coordinate": (much - little) * 1e6 / (MUCH.dim - LITTLE.dim),
    }
