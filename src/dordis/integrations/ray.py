"""Rounds whose clients compute in processes of a Ray cluster: `simulation.engine = "ray"` (extra `ray`).

The round engine is the same as for all other rounds.  Each process computes for some of the clients: it answers the
requests to these clients, with messages encoded as on a network, and sums their uploads.  If a process dies, its
clients are dropouts from then on.  The masks and the noise that the server removes are computed in Ray tasks, each for
a part of the vector.  The run starts every process itself, with the code installed on the machine, so Ray unpickles no
object of another party.
"""

import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count, islice
from typing import Any

import msgspec
import numpy as np

from dordis import wire
from dordis.crypto.prg import GROUP
from dordis.crypto.suite import Suite
from dordis.dropout_models import DropoutSchedule
from dordis.errors import DordisError, InputError, MissingExtra, ProtocolError
from dordis.kernels.ring import Packed, Vector
from dordis.ledger.round_charge import OwnerCharge
from dordis.owner.participation import Attendance
from dordis.pipeline.executor import Exchange
from dordis.privacy.skellam_noise import AddNoise
from dordis.protocol import ClientId, Message, Replies, Requests
from dordis.protocols.vector_backend import Accumulator, Released, Vectors
from dordis.rounds.engine import Gathered, RoundEngine
from dordis.rounds.invitation import Invitation
from dordis.rounds.watch import MessageMeter, Watch, silent
from dordis.selection.selection import Selection, UniformSelection
from dordis.simulation.exchange import LocalExchange, Lost
from dordis.simulation.population import FullRounds, Present, SimulatedHome, announce_peers
from dordis.simulation.run import IdleServer

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reads this at import: no usage statistics are sent
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
try:
    import ray
    from ray.exceptions import ObjectLostError, RayActorError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:
    raise MissingExtra("ray") from None

Counted = Mapping[Attendance, OwnerCharge]


@dataclass
class Answers:
    """The replies of the clients of one process, the reasons with which clients refused, and the traffic."""

    replies: list[tuple[ClientId, Message]] = field(default_factory=list)
    refusals: list[tuple[ClientId, str]] = field(default_factory=list)
    meter: MessageMeter = field(default_factory=MessageMeter)


@dataclass(frozen=True)
class Sum:
    """Description of a sum of uploads: a unique number, the chunk, and the length and bits of the summed vectors."""

    number: int
    chunk: int
    dim: int
    bits: int


class Worker:
    """A process that computes for some clients of a run; it keeps their uploads in memory until they are summed."""

    def __init__(self, home: SimulatedHome, selection: Selection, counted: Counted) -> None:
        self._clients = home.create_clients(b"", selection, counted)
        self._uploads: dict[tuple[int, ClientId], wire.Bulk] = {}
        self._sums: dict[int, Accumulator] = {}

    def answer(self, requests: Requests) -> Answers:
        """Return the replies of clients to requests, without the vectors of uploads, which stay in this process."""
        exchange = LocalExchange(self._clients)
        replies = [
            (u, self._store_upload(u, reply) if requests[u].uploads else reply)
            for u, reply in announce_peers(exchange, self._clients)(requests)
        ]
        refusals = [(u, str(error)) for u, error in exchange.errors]
        counted = MessageMeter()
        counted.add(exchange)
        return Answers(replies, refusals, counted)

    def _store_upload(self, u: ClientId, reply: Message) -> Message:
        self._uploads[getattr(reply, "chunk", 0), u] = wire.bulk_of(reply)
        return msgspec.structs.replace(reply, **{reply.bulk: b""}) if reply.bulk else reply

    def begin(self) -> bool:
        """Delete the uploads and sums that a failed round left behind; return True, as an acknowledgement."""
        self._uploads.clear()
        self._sums.clear()
        return True

    def add(self, sum: Sum, clients: Collection[ClientId]) -> None:
        """Add the stored uploads of these clients to a sum; malformed and missing uploads are left out."""
        total = self._sums.setdefault(sum.number, Accumulator(sum.dim, sum.bits))
        for u in clients:
            try:
                total.add(u, self._uploads.pop((sum.chunk, u)))
            except (InputError, KeyError):
                continue

    def total(self, sum: Sum) -> tuple[Vector, Collection[ClientId]]:
        """Return the sum of the uploads that were added in this process, and the clients whose uploads are in it."""
        return self._sums.pop(sum.number, Accumulator(sum.dim, sum.bits)).close()

    def willing(self, cap: int | None) -> list[ClientId]:
        """Return the clients of this process with fewer participations than `cap`; all of them if `cap` is None."""
        return self._clients.willing(cap)


UPLOADS = 8
"""Number of uploads that a process computes together and then adds; twice as many are in its memory at most."""
GONE = (RayActorError, ObjectLostError)
"""The errors of Ray for a lost process or machine."""

Handle = Any
"""A handle of a Ray actor."""


class Workers:
    """The processes of all clients, by index; `gone` has the indices of lost processes."""

    def __init__(self, handles: Sequence[Handle], ids: Sequence[ClientId]) -> None:
        self._handles, self.ids = list(handles), tuple(ids)
        self._place = {u: i % len(handles) for i, u in enumerate(ids)}
        self.gone: set[int] = set()

    def __contains__(self, u: ClientId) -> bool:
        return u in self._place and self._place[u] not in self.gone

    def place(self, u: ClientId) -> int:
        """Return the index of a client's process."""
        return self._place[u]

    @property
    def alive(self) -> list[int]:
        """Return the indices of the processes that are not known to be lost."""
        return [place for place in range(len(self._handles)) if place not in self.gone]

    def begin(self, place: int, name: str, *arguments: Any) -> Any:
        """Start a call of a `Worker` method in the process with index `place`; return Ray's reference to the result."""
        return getattr(self._handles[place], name).remote(*arguments)

    def result(self, place: int, reference: Any) -> Any:
        """Return the result of a call in process `place`, None if the process is lost; raise the call's DordisError."""
        try:
            return ray.get(reference)
        except GONE:
            self.gone.add(place)
            return None
        except RayTaskError as error:
            if isinstance(error.cause, DordisError):
                raise error.cause from None
            raise

    def ask(self, name: str, *arguments: Any) -> Iterator[tuple[int, Any]]:
        """Call a `Worker` method in every process; yield pairs of process index and result; skip lost processes."""
        begun = {self.begin(place, name, *arguments): place for place in self.alive}
        while begun:
            (done, *_), _ = ray.wait(list(begun), num_returns=1)
            place = begun.pop(done)
            result = self.result(place, done)
            if result is not None:
                yield place, result


class RayExchange(MessageMeter):
    """Sends each process the requests to its clients: all in one call, or, for uploads, `UPLOADS` in a call."""

    def __init__(self, workers: Workers, lost: Lost) -> None:
        super().__init__()
        self._workers, self._lost = workers, lost

    def __call__(self, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        """Send the requests; yield client and reply as they arrive."""
        waiting = {place: split_requests(asked) for place, asked in self._by_place(requests).items()}
        begun: dict[Any, int] = {}

        def go_on(place: int) -> None:
            part = next(waiting[place], None)
            if part is not None:
                begun[self._workers.begin(place, "answer", part)] = place

        for place in waiting:
            go_on(place)
        while begun:
            (done, *_), _ = ray.wait(list(begun), num_returns=1)
            place = begun.pop(done)
            answers = self._workers.result(place, done)
            if answers is not None:
                go_on(place)
                yield from self._counted(answers)

    def _by_place(self, requests: Requests) -> dict[int, dict[ClientId, Message]]:
        """Return the requests to send, by process index and client: without those lost by simulated dropouts."""
        asked: dict[int, dict[ClientId, Message]] = {}
        for u, request in requests.items():  # a request marked `ahead` only lets the client start computing early
            if u in self._workers and not request.ahead and not self._lost(u, request):
                asked.setdefault(self._workers.place(u), {})[u] = request
        return asked

    def _counted(self, answers: Answers) -> list[tuple[ClientId, Message]]:
        self.errors += [(u, ProtocolError(reason)) for u, reason in answers.refusals]
        self.add(answers.meter)
        return answers.replies


def split_requests(requests: Requests) -> Iterator[Requests]:
    """Yield the requests to one process in groups: all at once, but requests for uploads `UPLOADS` at a time."""
    most = UPLOADS if any(request.uploads for request in requests.values()) else len(requests)
    left = iter(requests.items())
    while part := dict(islice(left, most)):
        yield part


class RayAccumulator(Accumulator):
    """A sum of uploads, one partial sum per process; if a process dies, its clients are missing from the sum."""

    def __init__(self, workers: Workers, sum: Sum) -> None:
        self._workers, self._sum = workers, sum
        self._accepted: dict[int, list[ClientId]] = {}

    def add(self, u: ClientId, packed: Packed) -> None:
        """Add the upload of client `u` in the process that has it; `packed` is empty, because uploads stay there."""
        place = self._workers.place(u)
        accepted = self._accepted.setdefault(place, [])
        accepted.append(u)
        if len(accepted) == UPLOADS:
            self._flush(place)

    def _flush(self, place: int) -> None:
        self._workers.begin(place, "add", self._sum, self._accepted.pop(place))

    def close(self) -> tuple[Vector, Collection[ClientId]]:
        """Return the sum of all partial sums, and the clients whose uploads are in it."""
        for place in list(self._accepted):
            self._flush(place)
        total, clients = np.zeros(self._sum.dim, np.uint32), set()
        for _, (part, summed) in self._workers.ask("total", self._sum):
            if summed:
                total += part
                clients.update(summed)
        return total, clients


class RayVectors(Vectors):
    """Computes on vectors in Ray tasks, each for one part of a vector; a vector has as many parts as processors."""

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers, self._numbers = workers, count()
        self._slices = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def accumulator(self, chunk: int, dim: int, bits: int) -> RayAccumulator:
        return RayAccumulator(self._workers, Sum(next(self._numbers), chunk, dim, bits))

    def add_masks(
        self, suite: Suite, total: Vector, added: Sequence[Any], subtracted: Sequence[Any], bits: int
    ) -> None:
        if added or subtracted:
            self._add(total, sum_masks, (suite, added, subtracted, bits))

    def remove_noise(self, total: Vector, released: Released, add: AddNoise) -> None:
        if released:
            self._add(total, negate_noise, (released, add))

    def _add(self, total: Vector, compute: Callable[[Any, int, int], Vector], what: Any) -> None:
        """Add a vector to `total` in place; Ray tasks compute its parts.

        `compute(what, first, dim)` returns `dim` coordinates of the vector, from coordinate `first` on.
        """
        task, shared = _task(compute), ray.put(what)
        step = -(-total.size // self._slices // GROUP) * GROUP
        starts = range(0, total.size, max(1, step))
        parts = [task.remote(shared, at, min(step, total.size - at)) for at in starts]
        for at, part in zip(starts, parts, strict=True):
            total[at : at + step] += ray.get(part)


@cache
def _task(compute: Callable[[Any, int, int], Vector]) -> Any:
    """Return a function as a Ray task; cached, so that Ray sends the function only once to every process."""
    return ray.remote(compute)


def sum_masks(what: tuple[Suite, Sequence[Any], Sequence[Any], int], first: int, dim: int) -> Vector:
    """Return `dim` coordinates, from `first` on, of a sum of masks; `what` is (suite, added, subtracted, bits)."""
    suite, added, subtracted, bits = what
    total = np.zeros(dim, np.uint32)
    suite.prg.add_masks(total, added, subtracted, bits, first=first)
    return total


def negate_noise(what: tuple[Released, AddNoise], first: int, dim: int) -> Vector:
    """Return the negated sum of the noise of released seeds, from index `first` on; `what` has seeds and generator."""
    released, add = what
    total = np.zeros(dim, np.uint32)
    for seed, variance in released:
        add(total, seed, variance, subtract=True, first=first)
    return total


class RayRounds(FullRounds):
    """Rounds with clients in Ray processes; `present` chooses the clients to invite, `tap` may wrap the exchange."""

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
        answer = tap(exchange)

        async def deliver(requests: Requests) -> Replies:
            return answer(requests)

        engine = RoundEngine(
            deliver,
            job.protocol,
            home.registry.signing_keys(),
            self._available,
            suite=job.suite,
            meter=exchange,
            vectors=RayVectors(workers),
        )
        super().__init__(engine, departures)

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Delete the previous round's uploads in all processes; then return the clients that accept and train."""
        for _ in self._workers.ask("begin"):
            pass
        return super().gather(invitation, watch)

    def _available(self, index: int) -> Collection[ClientId]:
        """Return the available clients: with uniform selection without, otherwise with those of lost processes."""
        workers = self._workers
        asked = workers.ask("willing", self._cap)
        willing = {u for place, own in asked for u in own if workers.place(u) == place}
        gone = {u for u in workers.ids if u not in workers}
        return self._present(index, sorted(willing - gone if self._chooses else willing | gone))


def start_workers(home: SimulatedHome, selection: Selection, counted: Counted) -> Workers:
    """Start the processes of a run on the machines of the cluster; owners have counted the rounds in `counted`."""
    nodes = choose_nodes(home)
    home.registry.root()  # derives all keys once, before they are copied into the processes
    ids, dim = home.identities.ids, home.job.design.setting.dim
    job = replace(home.job, app=IdleServer(dim))  # the processes do not need the server's application
    shared = ray.put(replace(home, job=job, entropy=secrets.token_bytes))  # copies of a seeded stream would repeat
    actor, affinities = ray.remote(Worker), [NodeAffinitySchedulingStrategy(node, soft=True) for node in nodes]
    handles = [actor.options(scheduling_strategy=node).remote(shared, selection, counted) for node in affinities]
    return Workers(handles, ids)


def choose_nodes(home: SimulatedHome) -> list[str]:
    """Return the id of the Ray node for each process of a run; if Ray is not running, start it on this machine."""
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    nodes = list_processors()
    count = min(home.settings.workers or len(nodes), len(home.identities.ids))
    return [nodes[i % len(nodes)] for i in range(count)]


def describe_nodes(nodes: Sequence[str]) -> str:
    """Return in words where clients compute, from the ids of the nodes of all processes.

    >>> describe_nodes(["a", "b", "a"])
    'in 3 processes of Ray on 2 nodes'
    """
    counts = ((len(nodes), "process", "processes"), (len(set(nodes)), "node", "nodes"))
    processes, machines = (f"{count} {one if count == 1 else many}" for count, one, many in counts)
    return f"in {processes} of Ray on {machines}"


def list_processors() -> list[str]:
    """Return the node id of every processor of the cluster, alternating between the nodes.

    Raise InputError if there are no processors.
    """
    processors = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
    most = max(processors.values(), default=0)
    in_turn = [node for turn in range(most) for node, count in sorted(processors.items()) if turn < count]
    if not in_turn:
        raise InputError("the cluster of Ray has no processors: start it with some (--num-cpus)")
    return in_turn
