"""Names of metrics: an application chooses them, but for those that only the ledger may use."""

from collections.abc import Iterable
from pathlib import Path

from dordis.errors import InputError


def is_reserved(metric: str) -> bool:
    """Tell whether only the ledger may use this name: what a page calls epsilon comes from there.

    >>> is_reserved("accuracy"), is_reserved("Epsilon, last")
    (False, True)
    """
    return "epsilon" in metric.lower()


def check_metric_names(names: Iterable[str], path: Path) -> None:
    """No metric in the directory of a run has a reserved name."""
    for name in filter(is_reserved, names):
        raise InputError(f"the run at {path} has a metric called '{name}', as no run does: restore its metrics")
