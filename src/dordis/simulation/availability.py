"""Who can take part in a simulated round, who leaves it, and at which request: by rates, or as real devices did.

Each kind is a struct of plain settings, to be read from a configuration; its `model(seed, stages)` is the `Dropout` of
a run whose protocol has these requests.  Everything follows from the seed and the round's index.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Protocol

import msgspec
import numpy as np

from dordis.errors import InputError
from dordis.protocol import ClientId
from dordis.rounds.invitation import Invite, Train
from dordis.simulation.traces import BehaviourTrace, SlotTrace, Trace, read_behaviours, read_matrix

EARLY = (Invite.__name__, Train.__name__)
"""Requests before U is fixed: whoever leaves at one of them is not in the round."""

SEED_BYTES = 32
Seed = int | bytes
Stages = tuple[str, ...]
"""Requests of a protocol in order; a client that leaves at one answers neither it nor any that comes after it."""
Chance = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
_LEAVING, _ROWS = 1, 2  # what a generator is for: no two purposes share one


class Dropout(Protocol):
    """Who is there when."""

    def available(self, index: int, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Return who of all clients can be selected for a round."""
        ...

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        """Return who of the selected clients vanishes in a round, and the first request that goes unanswered."""
        ...


class _Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A model of dropout in the configuration: `kind` names it."""


class Never(_Kind, frozen=True, tag="none"):
    """Everybody is there, and stays."""

    def model(self, seed: Seed, stages: Stages) -> Dropout:
        """Return the dropout of a run."""
        return ByRate(seed, 0.0, stages)


class Rate(_Kind, frozen=True, tag="rate"):
    """Of n invited clients exactly floor(rate n) leave, each at one of the stages, all chosen at random.

    Without `stages` these are the requests of the protocol; `Invite` and `Train` come before those.
    """

    rate: Chance = 0.2
    stages: tuple[str, ...] = ()

    def model(self, seed: Seed, stages: Stages) -> Dropout:
        """Return the dropout of a run."""
        check_stages(self.stages or stages, stages)
        return ByRate(seed, self.rate, self.stages or stages)


class StageRates(_Kind, frozen=True, tag="stages"):
    """At each stage, everyone who is still there leaves with the rate of that stage."""

    rates: dict[str, Chance]

    def model(self, seed: Seed, stages: Stages) -> Dropout:
        """Return the dropout of a run."""
        check_stages(tuple(self.rates), stages)
        return ByStage(seed, self.rates, (*EARLY, *stages))


class FedScale(_Kind, frozen=True, tag="fedscale"):
    """As the devices of a FedScale behaviour trace, in JSON, were active; each is replayed without end.

    Round i begins `seconds` times i after the start of the trace, each of its stages `stage_seconds` after the one
    before.  With `volatile` only so many clients take part, those whose devices come and go most often.
    """

    path: str
    seconds: Seconds = 600.0
    stage_seconds: Seconds = 60.0
    volatile: Positive | None = None

    def model(self, seed: Seed, stages: Stages) -> Dropout:
        """Return the dropout of a run; read the file."""
        if not 0 < self.stage_seconds * len(stages) <= self.seconds:
            raise InputError(f"{len(stages)} stages of {self.stage_seconds} s do not fit into {self.seconds} s a round")
        times = (self.seconds, self.stage_seconds, len(stages))
        return _replayed(BehaviourTrace(read_behaviours(Path(self.path)), *times), seed, stages, self.volatile)


class Matrix(_Kind, frozen=True, tag="matrix"):
    """As the devices of a matrix were available, slot by slot: whoever is not there in the next slot leaves this round.

    The file is an npz whose array of that name has an entry for each slot and device: 1 is available, 0 not, -1
    unknown, which counts as not.  Round i is slot i; after the last but one it begins again.
    """

    path: str
    array: str = "avail"
    rows: Literal["slots", "devices"] = "slots"
    volatile: Positive | None = None

    def model(self, seed: Seed, stages: Stages) -> Dropout:
        """Return the dropout of a run; read the file."""
        entries = read_matrix(Path(self.path), self.array)
        return _replayed(SlotTrace(entries.T if self.rows == "slots" else entries), seed, stages, self.volatile)


DropoutModel = Never | Rate | StageRates | FedScale | Matrix


@dataclass(frozen=True)
class ByRate:
    """A fixed part of the selected clients leaves, at random stages."""

    seed: Seed
    rate: float
    stages: Stages

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def available(self, index: int, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Return everybody."""
        return frozenset(clients)

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        """Choose floor(rate n) clients, and a stage for each."""
        rng, everyone = _generator(self.seed, index, _LEAVING), sorted(clients)
        count = math.floor(Fraction(str(self.rate)) * len(everyone))  # 0.29 means 29 of 100
        chosen = sorted(rng.permutation(len(everyone))[:count].tolist())
        stages = rng.integers(len(self.stages), size=count).tolist()
        return {everyone[who]: self.stages[when] for who, when in zip(chosen, stages, strict=True)}


@dataclass(frozen=True)
class ByStage:
    """Every client leaves by itself, at each stage with the rate of that stage."""

    seed: Seed
    rates: dict[str, float]
    stages: Stages

    def __post_init__(self) -> None:
        for rate in self.rates.values():
            check_rate(rate)

    def available(self, index: int, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Return everybody."""
        return frozenset(clients)

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        """Draw a lot for each client and stage; the first that is below the rate decides."""
        everyone = sorted(clients)
        lots = _generator(self.seed, index, _LEAVING).random((len(everyone), len(self.stages)))
        below = lots < [self.rates.get(stage, 0.0) for stage in self.stages]
        return {u: self.stages[int(row.argmax())] for u, row in zip(everyone, below, strict=True) if row.any()}


@dataclass(frozen=True)
class Replay:
    """Every client is one of the devices of a trace, chosen by its id in an order that the seed shuffles.

    Where there are more clients than devices, several are the same.
    """

    trace: Trace
    seed: Seed
    stages: Stages

    @cached_property
    def _order(self) -> list[int]:
        return [int(device) for device in _generator(self.seed, 0, _ROWS).permutation(len(self.trace.changes))]

    def device(self, client: ClientId) -> int:
        """Return the device that a client is."""
        return self._order[client % len(self._order)]

    def available(self, index: int, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Return whose devices were there."""
        return frozenset(u for u in clients if self.trace.available(self.device(u), index))

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        """Return whose devices went away."""
        everyone = sorted(clients)
        lots = _generator(self.seed, index, _LEAVING).integers(len(self.stages), size=len(everyone)).tolist()
        places = {u: self.trace.leaves(self.device(u), index, lot) for u, lot in zip(everyone, lots, strict=True)}
        return {u: self.stages[place] for u, place in places.items() if place is not None}


@dataclass(frozen=True)
class MostVolatile:
    """Only those `count` of all clients take part whose devices come and go most often."""

    replay: Replay
    count: int

    def available(self, index: int, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Return who of the most volatile is there."""
        changes = self.replay.trace.changes
        ranked = sorted(clients, key=lambda u: (-changes[self.replay.device(u)], u))
        return self.replay.available(index, ranked[: self.count])

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        """Return whose devices went away."""
        return self.replay.leaving(index, clients)


def check_stages(stages: Collection[str], known: Stages) -> None:
    """There are stages, and they are a round's."""
    unknown = [stage for stage in stages if stage not in (*EARLY, *known)]
    if unknown or not stages:
        raise InputError(
            f"clients leave at some of {', '.join((*EARLY, *known))}, not at {', '.join(unknown) or 'none'}"
        )


def check_rate(rate: float) -> None:
    """A rate is one."""
    if not 0 <= rate <= 1:
        raise InputError(f"a dropout rate lies in 0..1, not at {rate}")


def _replayed(trace: Trace, seed: Seed, stages: Stages, volatile: int | None) -> Dropout:
    replay = Replay(trace, seed, stages)
    return replay if volatile is None else MostVolatile(replay, volatile)


def _generator(seed: Seed, index: int, purpose: int) -> np.random.Generator:
    number = int.from_bytes(seed, "big") if isinstance(seed, bytes) else seed
    if number < 0 or (isinstance(seed, bytes) and len(seed) != SEED_BYTES):
        raise InputError(f"the seed of a simulation is a number from 0 on, or {SEED_BYTES} bytes")
    return np.random.default_rng([number, index, purpose])
