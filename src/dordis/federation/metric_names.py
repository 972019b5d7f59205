"""Names of metrics: an application chooses them, except names that are reserved for the ledger."""

from collections.abc import Iterable
from pathlib import Path

from dordis.errors import InputError


def is_reserved(metric: str) -> bool:
    """Tell whether a name is reserved: every epsilon on a page comes from the ledger.

    >>> is_reserved("accuracy"), is_reserved("Epsilon, last")
    (False, True)
    """
    return "epsilon" in metric.lower()


def check_metric_names(names: Iterable[str], path: Path) -> None:
    """No metric in the directory of a run has a reserved name."""
    for name in filter(is_reserved, names):
        raise InputError(
            f"the run at {path} has a metric called '{name}', a name reserved for the ledger: restore its metrics"
        )
