"""Rounds of a simulated run over Ray, by the same engine as all other rounds.

The server's vectors are in the cluster too: uploads are summed in the clients' processes, and masks and noise are
computed in slices.
"""

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dordis.availability.dropout_models import DropoutSchedule
from dordis.crypto.prg import GROUP
from dordis.crypto.suite import Suite
from dordis.errors import InputError
from dordis.integrations.ray.workers import UPLOADS, Counted, RayExchange, Sum, Worker, Workers
from dordis.kernels.packing import Packed
from dordis.kernels.ring import Vector
from dordis.privacy.skellam_noise import AddNoise
from dordis.protocol import ClientId, Replies, Requests
from dordis.protocol_driver import Exchange
from dordis.protocols.vector_backend import Released
from dordis.rounds.engine import Gathered, RoundEngine
from dordis.rounds.invitation import Invitation
from dordis.rounds.watch import Watch, silent
from dordis.selection.selection import Selection, UniformSelection
from dordis.simulation.one_round import IdleServer
from dordis.simulation.population import FullRounds, Present, SimulatedHome


class RayAccumulator:
    """A sum of uploads in parts, one per process; if a process dies, its part is lost."""

    def __init__(self, workers: Workers, sum: Sum) -> None:
        self._workers, self._sum = workers, sum
        self._accepted: dict[int, list[ClientId]] = {}

    def add(self, u: ClientId, packed: Packed) -> None:
        """Add the upload in the process that holds it; the vector given here is empty."""
        place = self._workers.place(u)
        accepted = self._accepted.setdefault(place, [])
        accepted.append(u)
        if len(accepted) == UPLOADS:
            self._flush(place)

    def _flush(self, place: int) -> None:
        self._workers.begin(place, "add", self._sum, self._accepted.pop(place))

    def close(self) -> tuple[Vector, Collection[ClientId]]:
        """Return the sum of all parts, and the clients in it."""
        for place in list(self._accepted):
            self._flush(place)
        total, clients = np.zeros(self._sum.dim, np.uint32), set()
        for _, (part, summed) in self._workers.ask("total", self._sum):
            if summed:
                total += part
                clients.update(summed)
        return total, clients


class RayVectors:
    """Computes on vectors by Ray tasks, one slice of a chunk per processor; Ray repeats lost tasks."""

    def __init__(self, workers: Workers) -> None:
        self._workers, self._numbers = workers, count()
        self._slices = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def accumulator(self, chunk: int, dim: int, bits: int) -> RayAccumulator:
        """Return an empty sum of a chunk."""
        return RayAccumulator(self._workers, Sum(next(self._numbers), chunk, dim, bits))

    def add_masks(
        self, suite: Suite, total: Vector, added: Sequence[Any], subtracted: Sequence[Any], bits: int
    ) -> None:
        """Add and subtract masks in place, modulo 2^bits."""
        if added or subtracted:
            self._add(total, sum_masks, (suite, added, subtracted, bits))

    def remove_noise(self, total: Vector, released: Released, add: AddNoise) -> None:
        """Subtract released noise components, which `add` expands, in place, modulo 2^32."""
        if released:
            self._add(total, negate_noise, (released, add))

    def _add(self, total: Vector, compute: Callable[[Any, int, int], Vector], what: Any) -> None:
        """Compute each slice in a task, and add the results to `total`."""
        task, shared = _task(compute), ray.put(what)
        step = -(-total.size // self._slices // GROUP) * GROUP
        starts = range(0, total.size, max(1, step))
        parts = [task.remote(shared, at, min(step, total.size - at)) for at in starts]
        for at, part in zip(starts, parts, strict=True):
            total[at : at + step] += ray.get(part)


@cache
def _task(compute: Callable[[Any, int, int], Vector]) -> Any:
    """Return the Ray task of a function; cached, so that Ray sends the function to every process once."""
    return ray.remote(compute)


def sum_masks(what: tuple[Suite, Sequence[Any], Sequence[Any], int], first: int, dim: int) -> Vector:
    """Return a slice of the sum of masks."""
    suite, added, subtracted, bits = what
    total = np.zeros(dim, np.uint32)
    suite.prg.add_masks(total, added, subtracted, bits, first=first)
    return total


def negate_noise(what: tuple[Released, AddNoise], first: int, dim: int) -> Vector:
    """Return a slice of the negated sum of noise components."""
    released, add = what
    total = np.zeros(dim, np.uint32)
    for seed, variance in released:
        add(total, seed, variance, subtract=True, first=first)
    return total


class RayRounds(FullRounds):
    """Rounds with clients in Ray processes, on a cluster or on this machine."""

    def __init__(
        self,
        home: SimulatedHome,
        selection: Selection,
        counted: Counted,
        departures: DropoutSchedule,
        present: Present,
        tap: Callable[[Exchange], Exchange],
    ) -> None:
        self._workers = workers = start_workers(home, selection, counted)
        self._present, self._chooses, self._cap = present, isinstance(selection, UniformSelection), home.cap
        exchange, job = RayExchange(workers, departures.lost), home.job
        engine = RoundEngine(
            make_async(tap(exchange)),
            job.protocol,
            home.registry.signing_keys(),
            self._available,
            suite=job.suite,
            meter=exchange,
            vectors=RayVectors(workers),
        )
        super().__init__(engine, departures)

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Drop the previous round's state in all processes, and gather clients."""
        for _ in self._workers.ask("begin"):
            pass
        return super().gather(invitation, watch)

    def _available(self, index: int) -> Collection[ClientId]:
        """Return the clients to invite, without those of lost processes unless a schedule fixes the clients."""
        workers = self._workers
        asked = workers.ask("willing", self._cap)
        willing = {u for place, own in asked for u in own if workers.place(u) == place}
        gone = {u for u in workers.ids if u not in workers}
        return self._present(index, sorted(willing - gone if self._chooses else willing | gone))


def start_workers(home: SimulatedHome, selection: Selection, counted: Counted) -> Workers:
    """Return the processes of a run, started and spread over the machines of the cluster."""
    nodes = choose_nodes(home)
    home.registry.root()  # derives all keys once, before they are copied into the processes
    ids, dim = home.identities.ids, home.job.design.setting.dim
    job = replace(home.job, app=IdleServer(dim))  # the server's state is not needed there
    shared = ray.put(replace(home, job=job, entropy=secrets.token_bytes))  # copies of a seeded stream would repeat
    actor, affinities = ray.remote(Worker), [NodeAffinitySchedulingStrategy(node, soft=True) for node in nodes]
    handles = [actor.options(scheduling_strategy=node).remote(shared, selection, counted) for node in affinities]
    return Workers(handles, ids)


def choose_nodes(home: SimulatedHome) -> list[str]:
    """Return the node of each process of a run; without a cluster, start Ray on this machine."""
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    nodes = list_processors()
    count = min(home.settings.workers or len(nodes), len(home.identities.ids))
    return [nodes[i % len(nodes)] for i in range(count)]


def describe_nodes(nodes: Sequence[str]) -> str:
    """Return a clause about where clients compute, from the node of each process.

    >>> describe_nodes(["a", "b", "a"])
    'in 3 processes of Ray on 2 nodes'
    """
    counts = ((len(nodes), "process", "processes"), (len(set(nodes)), "node", "nodes"))
    processes, machines = (f"{count} {one if count == 1 else many}" for count, one, many in counts)
    return f"in {processes} of Ray on {machines}"


def list_processors() -> list[str]:
    """Return the node of every processor of the cluster, alternating; raise InputError if there are none."""
    processors = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
    most = max(processors.values(), default=0)
    in_turn = [node for turn in range(most) for node, count in sorted(processors.items()) if turn < count]
    if not in_turn:
        raise InputError("the cluster of Ray has no processors: start it with some (--num-cpus)")
    return in_turn


def make_async(exchange: Exchange) -> Any:
    """Return an awaitable form of an exchange; calls are answered one after the other."""

    async def deliver(requests: Requests) -> Replies:
        return exchange(requests)

    return deliver
