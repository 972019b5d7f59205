"""Traces of the availability of real devices, read from files.

`index` is the index of a round; a stage is a number from 0, its place in the round.
"""

import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.errors import InputError


class Trace(Protocol):
    """A trace: the availability of devices in every round."""

    @property
    def changes(self) -> Sequence[int]:
        """Return how often the availability of each device changed."""
        ...

    def available(self, device: int, index: int) -> bool:
        """Tell whether a device can be selected for a round."""
        ...

    def leaves(self, device: int, index: int, lot: int) -> int | None:
        """Return the stage at which a device leaves, or None; traces without times use `lot`, a random stage."""
        ...


class Behaviour(msgspec.Struct, frozen=True):
    """One device of a FedScale trace: seconds at which it became active and inactive, and the length of the trace."""

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
    """A trace with times: a device must be active at the moment of each request."""

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
        """Return the first stage at whose request a device is inactive, or None."""
        for stage in range(self.stages):
            if not self.devices[device].is_active(index * self.seconds + stage * self.stage_seconds):
                return stage
        return None


@dataclass(frozen=True, eq=False)
class SlotTrace:
    """Availability of devices in slots, one a round; a device unavailable in the next slot leaves at a random stage."""

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
        """Return stage 0 if the device is unavailable in this slot, `lot` if in the next slot only, else None."""
        if not self.available(device, index):
            return 0
        return None if self.entries[device, self._slot(index) + 1] == 1 else lot

    def _slot(self, index: int) -> int:
        slots: int = self.entries.shape[1]
        return index % (slots - 1)  # the last slot has no next slot


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
    """Return the matrix of 1, 0 and -1 from an npz; raise InputError if there is none."""
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
