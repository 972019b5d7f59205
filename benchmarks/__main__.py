"""Run one suite of measurements: `python -m benchmarks SUITE [--json] [--quick] [--only PART]`.

kernels      compiled loops, beside the limit of the hardware and other libraries
aggregation  whole SecAgg rounds: CPU, bytes and memory of client and server
assisted     rounds with one message per client, beside SecAgg+
privacy      encoding, decoding and planning
simulation   simulated rounds a second, beside Flower's
learning     training, and the paper's CNN beside Flower's and pfl's
records      records as the unit of privacy, beside Opacus on pooled records
flower       private rounds under Flower, beside its own SecAgg+
pipeline     planned round times beside real ones
refusals     the cost of refusing hostile messages and of knowing whom to blame
possible     how often impossible sums are noticed
network      deployed rounds over loopback
evaluation   rounds whose clients train while the round before is evaluated
watching     a scrape with 800 idle clients, the live page's CPU, the verification of 100 rounds
ray          rounds over a cluster of Ray

Comparisons with other packages are left out where these are not installed.
"""

import argparse
import json
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from benchmarks import (
    aggregation,
    assisted,
    evaluation,
    flower_rounds,
    impossible_sums,
    kernels,
    learning,
    network,
    pipeline,
    privacy,
    ray_rounds,
    records,
    refusals,
    simulation,
    watching,
)
from benchmarks.figure import Figure, Suite

SUITES: dict[str, Suite] = {
    "kernels": kernels,
    "aggregation": aggregation,
    "assisted": assisted,
    "privacy": privacy,
    "simulation": simulation,
    "learning": learning,
    "flower": flower_rounds,
    "pipeline": pipeline,
    "refusals": refusals,
    "possible": impossible_sums,
    "network": network,
    "evaluation": evaluation,
    "watching": watching,
    "ray": ray_rounds,
    "records": records,
}
FILE_WIDTH = 140


def main() -> None:
    """Measure, and print a table or one flat JSON object."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
        Console(width=None if sys.stdout.isatty() else FILE_WIDTH).print(tabulate(chosen.suite, values, suite.FIGURES))


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
