"""Run one suite of measurements: `python -m benchmarks kernels [--json] [--quick]`, or `aggregation`: whole rounds,
or `privacy`: encoding, decoding and planning, `simulation`: simulated rounds beside Flower's, `learning`: training, and
the paper's CNN beside Flower's and pfl's, `pipeline`: plans beside what rounds take, `refusals`: what refusing and
blaming cost, `possible`: what is noticed of spoilt sums, `flower`: private rounds under Flower, `ray`: rounds over a
cluster of Ray, or `network`: deployed rounds over loopback.

What is compared with other packages is left out where they are not installed.
"""

import argparse
import json
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from benchmarks import (
    aggregation,
    flower_rounds,
    kernels,
    learning,
    network,
    pipeline,
    possible,
    privacy,
    ray_rounds,
    refusals,
    simulation,
)
from benchmarks.figure import Figure, Suite

SUITES: dict[str, Suite] = {
    "kernels": kernels,
    "aggregation": aggregation,
    "privacy": privacy,
    "simulation": simulation,
    "learning": learning,
    "flower": flower_rounds,
    "pipeline": pipeline,
    "refusals": refusals,
    "possible": possible,
    "network": network,
    "ray": ray_rounds,
}
WIDTH_OF_A_FILE = 140


def main() -> None:
    """Measure, and print a table or one flat JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--json", action="store_true", help="print one JSON object, name -> number, and nothing else")
    parser.add_argument("--quick", action="store_true", help="repeat little: a smoke test, not a measurement")
    parser.add_argument("--only", metavar="PART", help="measure one part: of learning batched, threads, flwr, pfl, ..")
    chosen = parser.parse_args()
    suite = SUITES[chosen.suite]
    parts = getattr(suite, "PARTS", {})
    if chosen.only is not None and chosen.only not in parts:
        parser.error(f"the parts of '{chosen.suite}' are: {', '.join(parts) or 'none'}")
    values = parts[chosen.only](chosen.quick) if chosen.only else suite.run(chosen.quick)
    if chosen.json:
        print(json.dumps(values))
    else:
        Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE).print(
            tabulate(chosen.suite, values, suite.FIGURES)
        )


def tabulate(title: str, values: Mapping[str, float], figures: Mapping[str, Figure]) -> Table:
    """Lay the figures out beside their bars."""
    table = Table(title=title)
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("bar", justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("note")
    for name, value in values.items():
        figure = figures[name]
        verdict = "[green]pass[/]" if figure.met_by(value) else "[bold red]FAIL[/]"
        table.add_row(name, f"{value:,.4g}", figure.unit, figure.bar, verdict if figure.has_bar else "", figure.note)
    return table


if __name__ == "__main__":
    main()
