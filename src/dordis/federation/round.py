"""The coordinator: one round after the other, from the selection of clients to what the application makes of their sum.

It knows neither where the clients are nor how their messages travel: a `Fleet` does.  Nothing that costs privacy is
asked for before the ledger has it.
"""

import hashlib
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dordis.errors import InputError
from dordis.federation.app import AppServer
from dordis.federation.beacon import Beacon
from dordis.federation.design import Design
from dordis.federation.ledger import Ledger
from dordis.federation.receipt import Receipt
from dordis.federation.records import Failed, Metrics, RoundRecord, timestamp
from dordis.federation.retry import Pair, attempt, leave_out
from dordis.federation.selection import NO_PROOFS, Proofs, Selection
from dordis.pipeline.executor import Timeline
from dordis.pipeline.profile import AutoChunks
from dordis.privacy.clipping import Clipping
from dordis.privacy.encoding import SEED_BYTES
from dordis.privacy.mechanisms.mechanism import Mechanism
from dordis.privacy.skellam import Floats
from dordis.protocol import ClientId
from dordis.protocols.distributed_dp import Aggregate, DistributedDP
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import ChunkOutput

TRIES = 5
"""How often a round that fails is tried, each time under the next index and so with other clients."""

Watch = Callable[[str], None]
"""Told what begins: a stage of the round."""


@dataclass(frozen=True)
class Call:
    """What goes out for a round."""

    parameters: Parameters
    mechanism: Mechanism
    model: Floats = field(repr=False)
    proofs: Proofs
    unmasking: Callable[[], None]
    """To be called before the first request leaves whose answer costs privacy; it may raise."""
    watch: Watch


@dataclass(frozen=True)
class Sums:
    """What came back: the sum of every chunk, and what happened on the way, as `RoundRecord` tells it."""

    outputs: Sequence[ChunkOutput]
    stages: Mapping[str, float]
    dropped: Mapping[str, tuple[int, ...]]
    up: int | None = None
    down: int | None = None
    timeline: Timeline | None = None


class Fleet(Protocol):
    """The clients of a run, wherever they are."""

    def available(self, index: int) -> Collection[ClientId]:
        """Return who can be selected for a round."""
        ...

    def proofs(self, index: int) -> Proofs:
        """Return the proofs of clients who draw their own lots."""
        ...

    def sum(self, call: Call) -> Sums:
        """Have the clients prepare their data, and sum it."""
        ...

    def use_output(self, index: int, clients: Collection[ClientId], aggregate: Aggregate) -> None:
        """Let the clients of a round use the result."""
        ...


@dataclass(frozen=True)
class Finished:
    """A round that is over, ready to be recorded."""

    record: RoundRecord
    metrics: Metrics
    receipt: Receipt
    aggregate: Aggregate = field(repr=False)


@dataclass(frozen=True)
class _Summed:
    """A round up to its sum."""

    parameters: Parameters
    design: Design
    sums: Sums
    stages: Mapping[str, float]


def silent(stage: str) -> None:
    """Watch nothing."""


class Coordinator:
    """Run the rounds of one run; without a `ledger` nothing is proved and nothing counted."""

    def __init__(
        self,
        run: bytes,
        app: AppServer,
        design: Design,
        selection: Selection,
        fleet: Fleet,
        ledger: Ledger | None,
        beacon: Beacon | None = None,
        watch: Watch = silent,
        tries: int = TRIES,
        chunks: int | AutoChunks = 1,
        clipping: Clipping | None = None,
    ) -> None:
        self._run, self._app, self._design = run, app, design
        self._selection, self._fleet, self._ledger = selection, fleet, ledger
        self._beacon, self._watch, self._tries = beacon, watch, tries
        self._chunks, self._clipping = chunks, clipping or Clipping(design.setting.clip)

    def rounds(self, count: int, done: int = 0, index: int = 0) -> Iterator[Finished]:
        """Run rounds until `count` are finished, of which `done` were before; `index` is the first that is free.

        `BudgetExceeded` ends them before the round that would pass the budget.
        """
        for number in range(done + 1, count + 1):
            finished = self.round(number, index)
            yield finished
            index = finished.record.index + 1

    def round(self, number: int, index: int) -> Finished:
        """Run one round under this index or, where it fails, under one of the next."""
        began, started = timestamp(), time.perf_counter()
        attempted = attempt(self._sum, index, self._tries)
        summed = attempted.output
        parameters, outputs = summed.parameters, summed.sums.outputs
        if self._ledger is not None:
            self._ledger.complete(parameters.index, outputs)
        stages = dict(summed.stages)
        with _Timed(stages, "decode", self._watch):
            aggregate = DistributedDP(parameters, summed.design.mechanism).decode(outputs)
            self._clipping = self._clipping.next(aggregate.below)
        with _Timed(stages, "use output", self._watch):
            self._app.use_output(number, aggregate)
            self._fleet.use_output(parameters.index, parameters.clients, aggregate)
            values = check_finite(self._app.evaluate(), number) | summed.design.costs(outputs)
        spent = None if self._ledger is None else self._ledger.summary()
        noise = summed.design.noise(outputs)
        record = RoundRecord(
            number=number,
            index=parameters.index,
            started=began,
            seconds=time.perf_counter() - started,
            stages=stages,
            clients=tuple(int(u) for u in parameters.clients),
            survivors=tuple(len(output.survivors) for output in outputs),
            dropped=dict(summed.sums.dropped),
            up=summed.sums.up,
            down=summed.sums.down,
            wanted=None if noise is None else noise.wanted,
            left=None if noise is None else noise.left,
            charged=None if noise is None else noise.charged,
            epsilon=None if spent is None else spent.epsilon,
            failures=tuple(Failed(failure.index, str(failure.error)) for failure in attempted.failures),
            clip=parameters.encoding.clip or None,
            below=aggregate.below,
        )
        receipt = Receipt.of(parameters, outputs, spent.head if spent else "")
        return Finished(record, Metrics(number, values), receipt, aggregate)

    def _sum(self, index: int, blamed: frozenset[Pair]) -> _Summed:
        """Select the clients, agree on the parameters, make sure that the budget allows it, and sum."""
        stages: dict[str, float] = {}
        with _Timed(stages, "select", self._watch):
            parameters, design, proofs = self._agree(index, blamed)
            charge = None if self._ledger is None else design.charge(parameters)
            if self._ledger is not None and charge is not None:
                self._ledger.check_budget(charge)

        def unmasking() -> None:
            if self._ledger is not None and charge is not None:
                self._ledger.reserve(charge)
                self._ledger.unmasking(index)

        sums = self._fleet.sum(Call(parameters, design.mechanism, self._app.model(), proofs, unmasking, self._watch))
        if isinstance(self._chunks, AutoChunks) and sums.timeline is not None:
            self._chunks = self._chunks.observe(design.mechanism.grid.padded, sums.timeline)
        return _Summed(parameters, design, sums, stages | dict(sums.stages))

    def _agree(self, index: int, blamed: frozenset[Pair]) -> tuple[Parameters, Design, Proofs]:
        willing = leave_out(self._with_budget(self._fleet.available(index)), blamed, self._design.setting.t)
        selected = self._selection.select(index, willing, self._fleet.proofs(index))
        design = self._design.sized(len(selected.clients)).clipped(self._clipping.bound)
        parameters = design.agree_on(
            run=self._run,
            index=index,
            clients=selected.clients,
            rotation=secrets.token_bytes(SEED_BYTES),
            model=digest(self._app.model()),
            beacon=b"" if self._beacon is None else self._beacon.value(index),
            chunks=self._next_chunks(design),
        )
        return parameters, design, selected.proofs or NO_PROOFS

    def _next_chunks(self, design: Design) -> int:
        """Return the number of chunks for a round: as given, or what the rounds so far make best."""
        grid = design.mechanism.grid
        return self._chunks.next(grid.padded, grid.blocks) if isinstance(self._chunks, AutoChunks) else self._chunks

    def _with_budget(self, clients: Collection[ClientId]) -> Collection[ClientId]:
        """Leave out those who have taken part as often as the plan covers: they would refuse."""
        if self._ledger is None:
            return clients
        cap, times = self._design.cap, Counter(u for present in self._ledger.attended().values() for u in present)
        return [u for u in clients if times[u] < cap]


def digest(model: Floats) -> bytes:
    """Return the hash of a model that all clients of a round start from."""
    data = np.ascontiguousarray(model)
    return hashlib.sha256(b"dordis/v1/model" + data.dtype.str.encode() + data.tobytes()).digest()


def check_finite(values: Mapping[str, float], number: int) -> dict[str, float]:
    """Refuse metrics of an application that went astray; no number stands for them."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise InputError(f"'{name}' is not finite after round {number}: training diverged, lower its learning rate")
    return dict(values)


class _Timed:
    """Tell what begins, and note how long it took."""

    def __init__(self, stages: dict[str, float], name: str, watch: Watch) -> None:
        self._stages, self._name, self._watch = stages, name, watch

    def __enter__(self) -> None:
        self._watch(self._name)
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._stages[self._name] = self._stages.get(self._name, 0.0) + time.perf_counter() - self._started


def next_index(ledger: Ledger | None, last: RoundRecord | None) -> int:
    """Return the first index that no round of a run has used, as far as anyone knows."""
    used = [-1 if last is None else last.index]
    if ledger is not None:
        used.append(ledger.last_index())
    return max(used) + 1
