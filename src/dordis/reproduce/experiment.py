"""What every experiment gives: data for programs, tables for people, charts for papers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table

from dordis.report.charts import Chart


@dataclass(frozen=True)
class Experiment:
    """The outcome of an experiment; charts have the names of their files, and are made when they are asked for."""

    data: object
    """What JSON can hold."""
    tables: Sequence[Table | str]
    charts: Iterable[tuple[str, Chart]] = ()
