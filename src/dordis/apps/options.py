"""The options of an application in a configuration, as settings, and what all simulated clients share, made once."""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import msgspec

from dordis.errors import InputError
from dordis.federation.app import Task

Settings = TypeVar("Settings")
Shared = TypeVar("Shared")


def read(options: bytes, settings: type[Settings]) -> Settings:
    """Read options, in JSON, as settings; one that is unknown or unusable is an error."""
    try:
        return msgspec.json.decode(options, type=settings)
    except msgspec.ValidationError as error:
        raise InputError(f"in the options of the application: {error}") from error


def shared(settings: type[Settings], make: Callable[[Settings, int, int], Shared]) -> Callable[[Task], Shared]:
    """Return what makes something of a task's settings, population and seed, and only once for tasks that are equal.

    >>> class Settings(msgspec.Struct, frozen=True):
    ...     height: int = 2
    >>> table = shared(Settings, lambda settings, population, seed: [[seed] * population] * settings.height)
    >>> table(Task({"height": 1}, population=3, seed=7))
    [[7, 7, 7]]
    """

    @lru_cache(maxsize=1)
    def made(options: bytes, population: int, seed: int) -> Shared:
        return make(read(options, settings), population, seed)

    return lambda task: made(msgspec.json.encode(task.options, order="sorted"), task.population, task.seed)
