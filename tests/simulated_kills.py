"""Kill at a call that changes the disk, without a process: the call raises, and so does every later one.

A process that is dead writes nothing any more, whatever its `finally` clauses say.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CALLS = ("open", "write", "pwrite", "fsync", "replace", "link", "unlink", "ftruncate", "mkdir")
"""What changes a disk, as far as `dordis.durable_files` and its users ask for it."""


class Killed(BaseException):
    """The process is dead."""


class Life:
    """Calls that are left; the last one is not made, or half of it if it writes."""

    def __init__(self, calls: int) -> None:
        self.left, self.dead = calls, False

    @contextmanager
    def led(self) -> Iterator[None]:
        """Count calls while this lasts; when they are used up, `Killed` is raised and is not seen outside."""
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._counted(name, getattr(os, name)))
            try:
                yield
            except Killed:
                assert self.dead

    def _counted(self, name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if not self.dead and self.left:
                self.left -= 1
                return function(*arguments, **options)
            if not self.dead and name == "write":
                descriptor, data = arguments
                function(descriptor, bytes(data)[: len(data) // 2])
            self.dead = True
            raise Killed

        return call
