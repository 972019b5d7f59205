"""How the experiments of the paper are shown: tables or JSON, and charts on demand."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dordis.report.charts import Chart
    from dordis.reproduce import Experiment


def show(experiment: "Experiment", as_json: bool, charts: Path | None = None) -> None:
    """Write the charts, if a directory is named, and print the rest."""
    import msgspec

    from dordis.cli import tables

    if charts is not None:
        charts.mkdir(parents=True, exist_ok=True)
        for name, chart in experiment.charts:
            draw(chart, charts / f"{name}.svg")
    if as_json:
        print(msgspec.json.encode(experiment.data).decode())
        return
    console = tables.console()
    for table in experiment.tables:
        console.print(table)


def draw(chart: "Chart", path: Path) -> None:
    """Write a chart as SVG."""
    from dordis.report.svg import document

    path.write_text(document(chart) + "\n", encoding="utf-8")
