"""How kernels are compiled: without the GIL, cached on disk, and never in silence."""

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core import event

Function = TypeVar("Function", bound=Callable[..., Any])

CLEARED = "\r\x1b[K"
"""Written to a terminal: the line is empty, and begins anew."""


def kernel(function: Function) -> Function:
    """Compile a loop on first use, releasing the GIL and keeping the machine code on disk."""
    compiled: Function = numba.njit(nogil=True, cache=True)(function)
    return compiled


def inlined(function: Function) -> Function:
    """Compile a small function into the kernels that call it."""
    compiled: Function = numba.njit(nogil=True, cache=True, inline="always")(function)
    return compiled


class _Progress(event.Listener):  # type: ignore[misc]
    """Say on stderr that kernels are being compiled: a first use takes seconds and should not look hung.

    A terminal shows it in a line that goes away again.  Elsewhere, and where rich shows something live and puts its own
    stream in place of stderr, which knows whole lines alone, it is said once.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._seconds = 0.0
        self._started = 0.0
        self._announced = False

    def on_start(self, event: Any) -> None:
        name = _kernel_name(event)
        if name is None:
            return
        if self._depth == 0:
            self._started = time.monotonic()
            self._announce(name)
        self._depth += 1

    def on_end(self, event: Any) -> None:
        if _kernel_name(event) is None:
            return
        self._depth -= 1
        if self._depth == 0:
            self._seconds += time.monotonic() - self._started
            if _has_lines_that_go():
                sys.stderr.write(CLEARED)
                sys.stderr.flush()

    def _announce(self, name: str) -> None:
        if _has_lines_that_go():
            so_far = f"once on this machine ({self._seconds:.0f} s so far)"
            sys.stderr.write(f"{CLEARED}dordis: compiling {name}, {so_far}")
        elif not self._announced:
            sys.stderr.write("dordis: compiling kernels, once on this machine: about 10 seconds\n")
            self._announced = True
        sys.stderr.flush()


def _has_lines_that_go() -> bool:
    """Tell whether what is written can be taken away again."""
    return sys.stderr.isatty() and sys.stderr is sys.__stderr__


def _kernel_name(compilation: Any) -> str | None:
    """Return the kernel's own name, or None if the function compiled is not one of ours."""
    function = compilation.data["dispatcher"].py_func
    return function.__qualname__.lstrip("_") if function.__module__.startswith("dordis.") else None


event.register("numba:compile", _Progress())
