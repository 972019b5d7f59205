"""Decorators of kernels, and checks of the arrays that kernels take.

Kernels are functions that numba compiles; they run without the GIL, and are cached on disk.  While a kernel is compiled
a line on stderr says so.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba.core import event

from dordis.errors import InputError

Function = TypeVar("Function", bound=Callable[..., Any])

CLEARED = "\r\x1b[K"
"""Control sequence that erases the current line of a terminal."""


def kernel(function: Function) -> Function:
    """Return the function as a kernel: compiled on its first call, cached on disk, and run without the GIL."""
    compiled: Function = numba.njit(nogil=True, cache=True)(function)
    return compiled


def inline_kernel(function: Function) -> Function:
    """Return a small function as one that numba inlines into the kernels that call it."""
    compiled: Function = numba.njit(nogil=True, cache=True, inline="always")(function)
    return compiled


class _Progress(event.Listener):  # type: ignore[misc]
    """Announces on stderr that kernels are being compiled, because that takes seconds and would look like a hang.

    On a terminal the announcement is erased afterwards.  It is printed once, and stays, if stderr is no terminal, or if
    rich shows a live display, which replaces stderr by a stream of whole lines.
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
            if _is_rewritable_terminal():
                sys.stderr.write(CLEARED)
                sys.stderr.flush()

    def _announce(self, name: str) -> None:
        if _is_rewritable_terminal():
            so_far = f"once on this machine ({self._seconds:.0f} s so far)"
            sys.stderr.write(f"{CLEARED}dordis: compiling {name}, {so_far}")
        elif not self._announced:
            sys.stderr.write("dordis: compiling kernels, once on this machine: about 10 seconds\n")
            self._announced = True
        sys.stderr.flush()


def _is_rewritable_terminal() -> bool:
    """Tell whether stderr is a terminal on which a line can be erased."""
    return sys.stderr.isatty() and sys.stderr is sys.__stderr__


def _kernel_name(compilation: Any) -> str | None:
    """Return the name of the kernel that is compiled, or None if the function is not part of dordis."""
    function = compilation.data["dispatcher"].py_func
    return function.__qualname__.lstrip("_") if function.__module__.startswith("dordis.") else None


event.register("numba:compile", _Progress())


def check_array(name: str, array: npt.NDArray[Any], *dtypes: type[np.generic], written: bool = False) -> Any:
    """Return a view of `array` for a kernel, read-only unless `written`; raise InputError if `array` is unsuitable.

    With `written` the kernel changes the array, which must be writeable.  In every case it must be one-dimensional,
    contiguous and of one of `dtypes`.  Kernels are compiled once for each type of their arguments, and read-only is
    part of the type: read-only views of all arrays avoid a second compilation.
    """
    wanted = " or ".join(dtype.__name__ for dtype in dtypes)
    if not isinstance(array, np.ndarray) or array.dtype not in dtypes:
        raise InputError(f"{name} must be an array of {wanted}: got {getattr(array, 'dtype', type(array).__name__)}")
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise InputError(f"{name} must be one-dimensional and contiguous: pass np.ascontiguousarray(...).ravel()")
    if written:
        if not array.flags.writeable:
            raise InputError(f"{name} is written in place but is read-only: pass a copy")
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def check_bits(bits: int) -> None:
    """Raise InputError unless `bits` is an integer from 1 to 32, the widths of elements that fit a uint32."""
    if type(bits) is not int or not 1 <= bits <= 32:
        raise InputError(f"bits must be an integer from 1 to 32: got {bits!r}")
