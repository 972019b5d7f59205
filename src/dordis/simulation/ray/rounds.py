"""Rounds of a simulated run over Ray: the engine is the one of every other home."""

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dordis.drive import Exchange
from dordis.errors import InputError
from dordis.federation.selection import Selection, Uniform
from dordis.protocol import ClientId, Replies, Requests
from dordis.rounds.invitation import Invitation
from dordis.rounds.server import Gathered, RoundEngine, Watch, silent
from dordis.simulation.departures import Departures
from dordis.simulation.home import FullRounds, Present, SimulatedHome
from dordis.simulation.ray.vectors import RayVectors
from dordis.simulation.ray.worker import Counted, Worker
from dordis.simulation.ray.workers import RayExchange, Workers
from dordis.simulation.single import IdleServer


class RayRounds(FullRounds):
    """Rounds with clients in processes of Ray, of this machine's own if no cluster is there."""

    def __init__(
        self,
        home: SimulatedHome,
        selection: Selection,
        counted: Counted,
        departures: Departures,
        present: Present,
        tap: Callable[[Exchange], Exchange],
    ) -> None:
        self._workers = workers = started(home, selection, counted)
        self._present, self._chooses, self._cap = present, isinstance(selection, Uniform), home.cap
        exchange, job = RayExchange(workers, departures.lost), home.job
        engine = RoundEngine(
            at_any_time(tap(exchange)),
            job.protocol,
            home.registry.signing_keys(),
            self._available,
            suite=job.suite,
            meter=exchange,
            vectors=RayVectors(workers),
        )
        super().__init__(engine, departures)

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Have the processes forget the round before, and gather clients."""
        for _ in self._workers.ask("begin"):
            pass
        return super().gather(invitation, watch)

    def _available(self, index: int) -> Collection[ClientId]:
        """Return who can be invited; whose process is gone, only where the server may not choose who is there."""
        workers = self._workers
        asked = workers.ask("willing", self._cap)
        willing = {u for place, own in asked for u in own if workers.place(u) == place}
        gone = {u for u in workers.ids if u not in workers}
        return self._present(index, sorted(willing - gone if self._chooses else willing | gone))


def started(home: SimulatedHome, selection: Selection, counted: Counted) -> Workers:
    """Start the processes of a run, spread over the machines of the cluster."""
    nodes = places(home)
    home.registry.root()  # and with it all keys: derived once, here
    ids, dim = home.identities.ids, home.job.design.setting.dim
    job = replace(home.job, app=IdleServer(dim))  # without what is the server's alone
    shared = ray.put(replace(home, job=job, entropy=secrets.token_bytes))  # copies of a stream would repeat its secrets
    actor, affinities = ray.remote(Worker), [NodeAffinitySchedulingStrategy(node, soft=True) for node in nodes]
    handles = [actor.options(scheduling_strategy=node).remote(shared, selection, counted) for node in affinities]
    return Workers(handles, ids)


def places(home: SimulatedHome) -> list[str]:
    """Return the node of each process of a run; without a cluster, a Ray of this machine's own is started."""
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    nodes = spread()
    count = min(home.settings.workers or len(nodes), len(home.identities.ids))
    return [nodes[i % len(nodes)] for i in range(count)]


def where(nodes: Sequence[str]) -> str:
    """Say where clients compute, by the node of each process.

    >>> where(["a", "b", "a"])
    'in 3 processes of Ray on 2 nodes'
    """
    counts = ((len(nodes), "process", "processes"), (len(set(nodes)), "node", "nodes"))
    processes, machines = (f"{count} {one if count == 1 else many}" for count, one, many in counts)
    return f"in {processes} of Ray on {machines}"


def spread() -> list[str]:
    """Return the machines of the cluster, each as often as it has processors, in turn."""
    processors = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
    most = max(processors.values(), default=0)
    in_turn = [node for turn in range(most) for node, count in sorted(processors.items()) if turn < count]
    if not in_turn:
        raise InputError("the cluster of Ray has no processors: start it with some (--num-cpus)")
    return in_turn


def at_any_time(exchange: Exchange) -> Any:
    """Let chunks in different threads use one exchange: a process answers one call after the other."""

    async def later(requests: Requests) -> Replies:
        return exchange(requests)

    return later
