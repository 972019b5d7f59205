"""What a private statistic is told with: the figures, their noise, and what is proved about them."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dordis.apps.histogram import on_simplex
from dordis.privacy.accounting import delta_warnings
from dordis.privacy.skellam import Floats
from dordis.protocols.parameters import MALICIOUS

Figures = float | Floats
"""A number if the values came as one column, (clients,), else an array."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PrivateAnswer:
    """What every private statistic says of itself.

    `epsilon` and `delta` are proved for all of it; `epsilon_for_bounds` is what finding the bounds would have cost
    alone, at the same delta.  `dropped` of the `clients` vanished, and are not in the figures.  `sum_check` says
    whether the sum behind the figures was compared with what honest clients can make: `passed`, or `vacuous` if garbage
    would have passed too.
    """

    epsilon: float
    delta: float
    epsilon_for_bounds: float
    clients: int
    dropped: int
    colluders: int
    mode: str
    fidelity: str
    sum_check: str
    columns: tuple[str, ...] = ()
    """The names of the columns, if the values came with names, as a DataFrame does."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Return what must be said with epsilon: the unit and adjacency, the adversary, and what was simulated."""
        server = "a server that may deviate" if self.mode == MALICIOUS else "a server that keeps to the protocol"
        simulated = {
            "ideal": "simulated: the noise law and rounding of the protocol, no masks and no messages",
            "full": "simulated: every message of the protocol",
        }
        return (
            f"for one client, its whole row, whose contribution is replaced by zero{self._zero}; "
            "the number of clients is public",
            f"against {server}, with {self.colluders} of the clients",
            "dropout that depends on a client's data is outside the guarantee",
            simulated[self.fidelity],
            *(f"warning: {text}" for text in delta_warnings(self.delta, self.clients)),
        )

    @property
    def _zero(self) -> str:
        """Say what zero is in terms of the values."""
        return ""

    def __repr__(self) -> str:
        shown = (f"{name}={_written(getattr(self, name))}" for name in _figures_first(self))
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PrivateMean(PrivateAnswer):
    """The mean of each column; `sigma` is the standard deviation of its noise, and values are clipped to `bounds`."""

    mean: Figures
    sigma: Figures
    bounds: tuple[Figures, Figures]

    @property
    def _zero(self) -> str:
        return ", which stands for the middle of the bounds"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PrivateHistogram(PrivateAnswer):
    """The clients in each bin: `sigma` is the standard deviation of the noise on a count, which may be negative.

    Counts are (bins,) for a single column, else (columns, bins), and `edges`, which lie between the bins, likewise.
    The first and the last bin have no end, or, where there are `bounds`, hold what was clipped to them.
    """

    counts: Floats
    sigma: float
    edges: Floats
    bounds: tuple[Figures, Figures] | None

    @property
    def _zero(self) -> str:
        return ", so that no bin counts it"

    @property
    def frequencies(self) -> Floats:
        """Return the likeliest shares given the counts: not negative, and 1 in all."""
        present = self.clients - self.dropped
        return np.apply_along_axis(on_simplex, -1, self.counts / present)


def _figures_first(answer: PrivateAnswer) -> Iterator[str]:
    common = [item.name for item in fields(PrivateAnswer)]
    yield from (item.name for item in fields(answer) if item.name not in common)
    yield from common


def _written(value: object) -> str:
    if isinstance(value, np.ndarray):
        return np.array2string(value, precision=4, threshold=8, edgeitems=3, separator=", ").replace("\n", "")
    if isinstance(value, tuple):
        return f"({', '.join(map(_written, value))})"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def figures(array: npt.NDArray[np.float64], single: bool) -> Figures:
    """Return one column's figure as a number."""
    return float(array[0]) if single else array
