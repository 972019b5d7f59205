"""The experiments of the paper, its figures beside ours: what `dordis reproduce` shows, and no run needs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table

from dordis.report.charts import Chart


@dataclass(frozen=True)
class Experiment:
    """The outcome of an experiment: data for programs, tables for people, and charts, made when they are asked for."""

    data: object
    """What JSON can hold."""
    tables: Sequence[Table | str]
    charts: Iterable[tuple[str, Chart]] = ()
    """By the names of their files."""
