"""What kernels accept: compiled code trusts its arguments, so whoever calls it checks them here."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError


def check_array(name: str, array: npt.NDArray[Any], *dtypes: type[np.generic], written: bool = False) -> Any:
    """Return a contiguous vector of one of `dtypes` for a kernel, as a read-only view unless it is to be written.

    A kernel is compiled once per argument type, and read-only is part of the type: views spare a second compilation.
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
    """Refuse a number of bits that an element of uint32 cannot have."""
    if type(bits) is not int or not 1 <= bits <= 32:
        raise InputError(f"bits must be an integer from 1 to 32: got {bits!r}")
