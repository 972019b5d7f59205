"""Models of availability and dropout in simulated rounds, by rates or by traces of real devices.

Each kind of model is a struct in the configuration; its `model(seed, stages)` returns the `Dropout` of a run, where
`stages` are the requests of the run's protocol.  All draws follow from the seed and the round's index.  A
`DropoutSchedule` applies a model to a round: a client gets neither the request at which it leaves nor any later one.
"""

import math
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.crypto.prg import SEED_BYTES
from dordis.errors import InputError
from dordis.protocol import ClientId, Message, requests_in
from dordis.protocols import delivery
from dordis.protocols.summing import SummingProtocol
from dordis.rounds import invitation
from dordis.rounds.invitation import Invite, Train

EARLY = (Invite.__name__, Train.__name__)
"""Requests before the clients U of a round are fixed: a client that leaves at one of them is not in the round."""
Seed = int | bytes
Stages = tuple[str, ...]
"""Requests of a protocol in order; a client that leaves at a request answers neither this nor any later request."""
Chance = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
_LEAVING, _ROWS = 1, 2  # purposes of random draws: each purpose has its own generator


class Dropout(Protocol):
    """A rule that says which clients are available for a round, and which of them drop out of it."""

    def available(self, index: int, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Return the clients that can be selected for a round; by default, all."""
        return frozenset(clients)

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        """Return those of `clients` that drop out of a round, each with the first request that it does not answer."""


class _Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """The settings of a dropout model in the configuration; the setting `kind` says which model it is."""


class NoDropout(_Kind, frozen=True, tag="none"):
    """All clients are available, and none drops out."""

    def model(self, seed: Seed, stages: Stages) -> Dropout:
        return RateDropout(seed, 0.0, stages)


class Rate(_Kind, frozen=True, tag="rate"):
    """Of n invited clients floor(rate n) leave, chosen at random, each at one of the `stages`, also chosen at random.

    `stages` are names of requests: by default all requests of the protocol.  `Invite` and `Train` are allowed too.
    """

    rate: Chance = 0.2
    stages: tuple[str, ...] = ()

    def model(self, seed: Seed, stages: Stages) -> Dropout:
        check_stages(self.stages or stages, stages)
        return RateDropout(seed, self.rate, self.stages or stages)


class StageRates(_Kind, frozen=True, tag="stages"):
    """At each stage every remaining client drops out with this stage's probability in `rates`, by default 0."""

    rates: dict[str, Chance]

    def model(self, seed: Seed, stages: Stages) -> Dropout:
        check_stages(tuple(self.rates), stages)
        return StageDropout(seed, self.rates, (*EARLY, *stages))


class FedScale(_Kind, frozen=True, tag="fedscale"):
    """Each client is available when its device in a FedScale behaviour trace, a JSON file, was active.

    A device's trace is repeated when it has ended.  Round i begins i times `seconds` after the start of the trace, and
    its stages are `stage_seconds` apart.  With `volatile` = v only those v clients take part whose devices change their
    availability most often.
    """

    path: str
    seconds: Seconds = 600.0
    stage_seconds: Seconds = 60.0
    volatile: Positive | None = None

    def model(self, seed: Seed, stages: Stages) -> Dropout:
        if not 0 < self.stage_seconds * len(stages) <= self.seconds:
            raise InputError(f"{len(stages)} stages of {self.stage_seconds} s do not fit into {self.seconds} s a round")
        times = (self.seconds, self.stage_seconds, len(stages))
        return TraceReplay(BehaviourTrace(read_behaviours(Path(self.path)), *times), seed, stages, self.volatile)


class Matrix(_Kind, frozen=True, tag="matrix"):
    """Availability by a matrix of time slots and devices: a client leaves if its device is away in the next slot.

    The file is an npz.  Its array named `array` has an entry for each slot and device: 1 is available, 0 unavailable,
    -1 unknown, which counts as unavailable.  `rows` says whether a row of the array is a slot or a device.  With s
    slots, round i takes place in slot i mod (s - 1), so that there is always a next slot.
    """

    path: str
    array: str = "avail"
    rows: Literal["slots", "devices"] = "slots"
    volatile: Positive | None = None

    def model(self, seed: Seed, stages: Stages) -> Dropout:
        entries = read_matrix(Path(self.path), self.array)
        return TraceReplay(SlotTrace(entries.T if self.rows == "slots" else entries), seed, stages, self.volatile)


DropoutModel = NoDropout | Rate | StageRates | FedScale | Matrix


@dataclass(frozen=True)
class RateDropout(Dropout):
    """A fixed fraction of the selected clients leaves, at random stages."""

    seed: Seed
    rate: float
    stages: Stages

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        """Return floor(rate n) random clients, each with a random stage."""
        rng, everyone = _generator(self.seed, index, _LEAVING), sorted(clients)
        count = math.floor(Fraction(str(self.rate)) * len(everyone))  # exact: a rate of 0.29 is 29 of 100
        chosen = sorted(rng.permutation(len(everyone))[:count].tolist())
        stages = rng.integers(len(self.stages), size=count).tolist()
        return {everyone[who]: self.stages[when] for who, when in zip(chosen, stages, strict=True)}


@dataclass(frozen=True)
class StageDropout(Dropout):
    """At each stage every remaining client leaves with this stage's probability in `rates`, independently of others."""

    seed: Seed
    rates: dict[str, float]
    stages: Stages

    def __post_init__(self) -> None:
        for rate in self.rates.values():
            check_rate(rate)

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        """Return the clients that leave, each with the first stage for which its random draw is below the rate."""
        everyone = sorted(clients)
        lots = _generator(self.seed, index, _LEAVING).random((len(everyone), len(self.stages)))
        below = lots < [self.rates.get(stage, 0.0) for stage in self.stages]
        return {u: self.stages[int(row.argmax())] for u, row in zip(everyone, below, strict=True) if row.any()}


class Behaviour(msgspec.Struct, frozen=True):
    """A device of a FedScale trace: the seconds at which it became active and inactive, and the trace's length."""

    active: tuple[float, ...]
    inactive: tuple[float, ...]
    finish_time: float

    def is_active(self, seconds: float) -> bool:
        """Tell whether the device is active `seconds` after the start of the trace, which repeats."""
        now = seconds % self.finish_time
        latest = bisect_right(self.active, now) - 1
        return latest >= 0 and now <= self.inactive[latest]


@dataclass(frozen=True)
class BehaviourTrace:
    """A trace of times of activity: a client leaves at the first request that comes while its device is inactive.

    Round i begins i times `seconds` after the start of the trace; its `stages` are `stage_seconds` apart.
    """

    devices: Sequence[Behaviour]
    seconds: float
    stage_seconds: float
    stages: int

    @cached_property
    def changes(self) -> Sequence[int]:
        """Return how often the availability of each device changed in one pass of its trace."""
        return [2 * len(device.active) for device in self.devices]

    def available(self, device: int, index: int) -> bool:
        """Tell whether a device is active when a round begins."""
        return self.devices[device].is_active(index * self.seconds)

    def leaves(self, device: int, index: int, lot: int) -> int | None:
        """Return the number, from 0, of the first stage at which a device is inactive; None if there is none.

        `lot`, the number of a random stage, is not used.
        """
        start, is_active = index * self.seconds, self.devices[device].is_active
        return next((stage for stage in range(self.stages) if not is_active(start + stage * self.stage_seconds)), None)


@dataclass(frozen=True, eq=False)
class SlotTrace:
    """A trace with one slot for each round: a device that is unavailable in the next slot leaves at a random stage."""

    entries: npt.NDArray[np.int8]

    def __post_init__(self) -> None:
        if self.entries.shape[1] < 2:
            raise InputError("a matrix of availability has at least two slots: devices leave between slots")

    @cached_property
    def changes(self) -> Sequence[int]:
        """Return how often the availability of each device changed between slots."""
        there = self.entries == 1
        counts: list[int] = (there[:, 1:] != there[:, :-1]).sum(axis=1).tolist()
        return counts

    def available(self, device: int, index: int) -> bool:
        """Tell whether a device is available in a round's slot."""
        return bool(self.entries[device, self._slot(index)] == 1)

    def leaves(self, device: int, index: int, lot: int) -> int | None:
        """Return the number of the stage at which a device leaves; None if the device stays.

        The number is 0 if the device is unavailable in the slot of the round with this index.  It is `lot`, a stage
        drawn at random by the caller, if the device is available in this slot and unavailable in the next one.
        """
        if not self.available(device, index):
            return 0
        return None if self.entries[device, self._slot(index) + 1] == 1 else lot

    def _slot(self, index: int) -> int:
        return int(index % (self.entries.shape[1] - 1))  # the last slot has no next slot


Trace = BehaviourTrace | SlotTrace


def read_behaviours(path: Path) -> list[Behaviour]:
    """Return the devices of a FedScale behaviour trace; raise InputError if the file is not one.

    The file is a JSON object of devices, each with `active`, `inactive` and `finish_time`.
    """
    try:
        devices = msgspec.json.decode(path.read_bytes(), type=dict[str, Behaviour])
    except OSError as error:
        raise InputError(f"the behaviour trace {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a behaviour trace: {error}") from None
    if not devices:
        raise InputError(f"the behaviour trace {path} has no devices")
    for name, device in devices.items():
        check_behaviour(path, name, device)
    return list(devices.values())


def read_matrix(path: Path, array: str) -> npt.NDArray[np.int8]:
    """Return the `array` of an npz file; raise InputError unless it is a matrix of 1, 0 and -1 (see `Matrix`)."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            entries = np.asarray(arrays[array])
    except KeyError:
        raise InputError(f"there is no array '{array}' in {path}") from None
    except (OSError, EOFError, ValueError, TypeError, IndexError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"the availability matrix {path} cannot be read as an npz: {error}") from None
    if entries.ndim != 2 or min(entries.shape) < 1 or not np.isin(entries, (-1, 0, 1)).all():
        raise InputError(f"'{array}' in {path} must be a matrix of slots and devices, of 1, 0 and -1 only")
    return entries.astype(np.int8)


def check_behaviour(path: Path, name: str, device: Behaviour) -> None:
    """Raise InputError unless the active and inactive times of a device alternate within its trace."""
    times = [time for pair in zip(device.active, device.inactive, strict=False) for time in pair]
    if len(device.active) != len(device.inactive):
        raise InputError(f"device '{name}' of {path} must have as many 'inactive' times as 'active' ones")
    bounds = [0.0, *times, device.finish_time]
    if not device.finish_time > 0 or not all(before <= after for before, after in pairwise(bounds)):
        raise InputError(f"the times of device '{name}' of {path} do not ascend from 0 to its 'finish_time'")


@dataclass(frozen=True)
class TraceReplay(Dropout):
    """Every client behaves like one device of a trace; the seed decides which device a client has.

    If there are more clients than devices, several clients have the same device.  With `volatile` = v only those v
    clients take part whose devices change their availability most often.
    """

    trace: Trace
    seed: Seed
    stages: Stages
    volatile: int | None = None

    @cached_property
    def _order(self) -> list[int]:
        return [int(device) for device in _generator(self.seed, 0, _ROWS).permutation(len(self.trace.changes))]

    def device(self, client: ClientId) -> int:
        return self._order[client % len(self._order)]

    def available(self, index: int, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Return those of `clients` whose devices are available in round `index`.

        With `volatile` = v, return only those among the v of `clients` whose devices change availability most often.
        """
        if self.volatile is not None:
            changes = self.trace.changes
            clients = sorted(clients, key=lambda u: (-changes[self.device(u)], u))[: self.volatile]
        return frozenset(u for u in clients if self.trace.available(self.device(u), index))

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        """Return the clients whose devices become unavailable in the round, each with the first missed request."""
        everyone = sorted(clients)
        lots = _generator(self.seed, index, _LEAVING).integers(len(self.stages), size=len(everyone)).tolist()
        places = {u: self.trace.leaves(self.device(u), index, lot) for u, lot in zip(everyone, lots, strict=True)}
        return {u: self.stages[place] for u, place in places.items() if place is not None}


def check_stages(stages: Collection[str], known: Stages) -> None:
    """Raise InputError if `stages` is empty or names a request that is neither in `known` nor in EARLY."""
    unknown = [stage for stage in stages if stage not in (*EARLY, *known)]
    if unknown or not stages:
        raise InputError(
            f"stages of dropout are among {', '.join((*EARLY, *known))}, not {', '.join(unknown) or 'an empty list'}"
        )


def check_rate(rate: float) -> None:
    """Raise InputError unless a rate is in 0..1."""
    if not 0 <= rate <= 1:
        raise InputError(f"a dropout rate lies in 0..1, not at {rate}")


def _generator(seed: Seed, index: int, purpose: int) -> np.random.Generator:
    number = int.from_bytes(seed, "big") if isinstance(seed, bytes) else seed
    if number < 0 or (isinstance(seed, bytes) and len(seed) != SEED_BYTES):
        raise InputError(f"the seed of a simulation is a number from 0 on, or {SEED_BYTES} bytes")
    return np.random.default_rng([number, index, purpose])


ArrivalOrder = Callable[[int, Collection[ClientId]], Iterable[ClientId]]
"""A function of a round's index and of clients, which returns these clients in the order in which they arrive."""


def in_given_order(index: int, clients: Collection[ClientId]) -> Iterable[ClientId]:
    """Return the clients in the order in which they are given."""
    return clients


class DropoutSchedule:
    """The dropouts of each round, drawn from a dropout model, and the order of arrival in assisted rounds."""

    def __init__(self, dropout: Dropout, protocol: SummingProtocol, order: ArrivalOrder = in_given_order) -> None:
        self._dropout, self._order, self._index = dropout, order, 0
        requests = (*requests_in(vars(invitation)), *protocol.requests, *requests_in(vars(delivery)))
        self._place = {request.__name__: place for place, request in enumerate(requests)}
        self.leaving: dict[ClientId, str] = {}
        self._gone: set[ClientId] = set()

    def begin(self, index: int, invited: Collection[ClientId]) -> None:
        """Draw the dropouts of the round with this index; unavailable clients leave at the invitation."""
        there = self._dropout.available(index, invited)
        absent = dict.fromkeys((u for u in invited if u not in there), EARLY[0])
        self.leaving = absent | self._dropout.leaving(index, [u for u in invited if u in there])
        self._gone, self._index = set(), index

    def present(self, index: int, clients: Collection[ClientId]) -> Collection[ClientId]:
        """Return the clients that are available when a round begins."""
        return self._dropout.available(index, clients)

    def lost(self, u: ClientId, request: Message) -> bool:
        """Tell whether client `u` has left the round when `request` arrives."""
        name, stage = type(request).__name__, self.leaving.get(u)
        if stage is not None and not request.ahead and self._place[stage] <= self._place[name]:
            self._gone.add(u)
        return u in self._gone

    def coming(self, clients: Iterable[ClientId]) -> Iterable[ClientId]:
        """Return the clients that come to an assisted round, in order: all that answer `Invite` and `Train`."""
        return [u for u in self._order(self._index, tuple(clients)) if not self.is_early(u)]

    def is_early(self, u: ClientId) -> bool:
        """Tell whether a client leaves the round begun last (`begin`) before the clients U of this round are fixed."""
        return self.leaving.get(u) in EARLY
