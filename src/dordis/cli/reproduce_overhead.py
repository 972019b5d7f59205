"""How much of a round is aggregation as the number of clients grows, with and without noise (paper, section 2.3.2)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dordis.cli.reproduce_rounds import claims_table, fields, mixes_of
from dordis.reproduce.claims import share_claims
from dordis.reproduce.paper_mix import OVERLAP, PAPER
from dordis.reproduce.round_times import RoundTime, shares


def overhead(costs: Path | None, paper: bool, charts: Path | None, as_json: bool) -> None:
    """Model ResNet-18 at 10 % dropout with more and more clients, and print the share of aggregation."""
    mixes = [mix for mix in mixes_of(costs, paper) if mix is not OVERLAP]  # of interest for pipelining alone
    found = {mix.name: shares(mix) for mix in mixes}
    claims = {mix.name: share_claims(found[mix.name]) for mix in mixes if mix is PAPER}
    if charts is not None:
        from dordis.cli.reproduce_charts import share_charts, write

        write(charts, share_charts(found))
    if as_json:
        print(json.dumps(fields(mixes, found, claims)))
        return
    console = Console(soft_wrap=True)
    for mix in mixes:
        console.print(share_table(mix.name, found[mix.name]))
    for name, each in claims.items():
        console.print(claims_table(f"claims, {name} costs", each))


def share_table(name: str, rounds: Sequence[RoundTime]) -> Table:
    """Show the share of aggregation in plain and in pipelined rounds, by clients and by noise."""
    by: Mapping[tuple[str, int, str], RoundTime] = {(each.graph, each.clients, each.scheme): each for each in rounds}
    schemes = dict.fromkeys(scheme for _, _, scheme in by)
    title = f"aggregation in a round of {rounds[0].model}, 10 % dropout, {name} costs: plain / pipelined"
    table = Table("graph", "n", *("no noise" if scheme == "none" else scheme for scheme in schemes), title=title)
    for graph, n in dict.fromkeys((graph, n) for graph, n, _ in by):
        cells = (f"{by[graph, n, s].share:.1%} / {by[graph, n, s].pipelined_share:.1%}" for s in schemes)
        table.add_row(graph, str(n), *cells)
    return table
