"""The paper's experiments, with its figures beside ours: `python -m reproduce` runs them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table

from dordis.report.charts import Chart


@dataclass(frozen=True)
class Experiment:
    """The outcome of an experiment: data for JSON, tables to print, and charts, which are drawn on demand."""

    data: object
    tables: Sequence[Table | str]
    charts: Iterable[tuple[str, Chart]] = ()
    """Pairs of a file name without suffix, and a chart."""
