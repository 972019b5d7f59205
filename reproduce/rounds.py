"""Round times and the share of aggregation in a round, under the paper's costs and under measured costs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from dordis.errors import InputError
from reproduce import Experiment
from reproduce.charts import round_charts, share_charts
from reproduce.claims import Claim, own_claims, padding_claim, paper_claims, share_claims
from reproduce.costs import CLIENT, SERVER, Costs
from reproduce.costs_measured import measure
from reproduce.costs_paper import OVERLAP, PAPER, UNPADDED
from reproduce.round_times import RoundTime, group_by, run_figure, run_shares


def cost_mixes(path: Path | None, paper: bool) -> list[Costs]:
    """Return the paper's costs and, unless `paper`, measured ones, read from the file or measured and written to it."""
    if paper:
        return [PAPER, OVERLAP]
    if path is not None and path.exists():
        try:
            return [PAPER, OVERLAP, msgspec.json.decode(path.read_bytes(), type=Costs)]
        except (msgspec.DecodeError, OSError) as error:
            raise InputError(f"{path} holds no costs: {error}") from None
    measured = measure()
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(measured)))
    return [PAPER, OVERLAP, measured]


def compare_rounds(mixes: Sequence[Costs]) -> Experiment:
    """Simulate every configuration of the paper's figure (sections 6.3 and 6.4), and compare it with the claims."""
    times = {mix.name: run_figure(mix) for mix in mixes}
    claims = {name: _claims(name, modelled) for name, modelled in times.items()}
    tables: list[Table] = []
    for mix in mixes:
        tables += [] if mix in (PAPER, OVERLAP) else [costs_table(mix)]
        tables += [*round_tables(mix.name, times[mix.name]), claims_table(mix.name, claims[mix.name])]
    return Experiment(_data(mixes, times, claims), tables, round_charts(mixes, times))


def compare_overhead(mixes: Sequence[Costs]) -> Experiment:
    """Simulate ResNet-18 at 10 % dropout with growing numbers of clients (section 2.3.2): the share of aggregation."""
    shown = [mix for mix in mixes if mix is not OVERLAP]  # OVERLAP differs in what pipelining gains
    times = {mix.name: run_shares(mix) for mix in shown}
    claims = {PAPER.name: share_claims(times[PAPER.name])}
    tables = [share_table(name, modelled) for name, modelled in times.items()]
    tables += [claims_table(name, stated) for name, stated in claims.items()]
    return Experiment(_data(shown, times, claims), tables, share_charts(times))


def _claims(name: str, times: Sequence[RoundTime]) -> list[Claim]:
    if name == PAPER.name:
        return [*paper_claims(times), padding_claim(run_figure(UNPADDED))]
    return paper_claims(times) if name == OVERLAP.name else own_claims(times)


def _data(
    mixes: Sequence[Costs], times: Mapping[str, Sequence[RoundTime]], claims: Mapping[str, Sequence[Claim]]
) -> dict[str, object]:
    return {
        "costs": {mix.name: mix for mix in mixes},
        "rounds": [time for modelled in times.values() for time in modelled],
        "claims": claims,
    }


def round_tables(name: str, times: Sequence[RoundTime]) -> Iterator[Table]:
    """Return a table for each model and graph, with a row for each rate of dropout and noise scheme."""
    for (model, n, graph), group in group_by(times, "model", "clients", "graph").items():
        title = f"{model}, n = {n}, {graph}, {name} costs; other {group[0].other:g} s"
        heads = (
            "dropout",
            "noise",
            "plain s",
            "pipelined s",
            "chunks",
            "speed-up",
            "over bound",
            "projected s",
            "its bound",
        )
        table = Table(*heads, f"idle {', '.join(group[0].plain_busy)}: plain", "pipelined", title=title)
        for time in group:
            table.add_row(
                f"{time.dropout:.0%}",
                time.scheme,
                f"{time.plain:,.1f}",
                f"{time.pipelined:,.1f}",
                str(time.chunks),
                f"{time.speedup:.2f}",
                f"{time.over_bound:.2f} {time.bottleneck}",
                f"{time.projected:,.1f}",
                f"{time.projected_bound:,.1f} {time.projected_bottleneck}",
                *(", ".join(f"{1 - x:.0%}" for x in busy.values()) for busy in (time.plain_busy, time.pipelined_busy)),
            )
        yield table


def share_table(name: str, times: Sequence[RoundTime]) -> Table:
    """Return the table of the share of aggregation in plain and pipelined rounds, by clients and noise."""
    schemes = ("no noise" if scheme == "none" else scheme for scheme in group_by(times, "scheme"))
    title = f"aggregation in a round of {times[0].model}, 10 % dropout, {name} costs: plain / pipelined"
    table = Table("graph", "n", *schemes, title=title)
    for (graph, n), group in group_by(times, "graph", "clients").items():
        table.add_row(graph, str(n), *(f"{time.share:.1%} / {time.pipelined_share:.1%}" for time in group))
    return table


def costs_table(costs: Costs) -> Table:
    """Return the table of measured seconds of each step."""
    table = Table("step", "of", "seconds", title="measured on this machine: CPU seconds, linear in counts")
    for step, laws in costs.laws.items():
        for which in (CLIENT, SERVER):
            if law := laws.get(which):
                table.add_row(step, which, " + ".join(f"{value:.2e} {count}" for count, value in law.items()))
    return table


def claims_table(name: str, claims: Sequence[Claim]) -> Table:
    """Return the table of claims and observed values."""
    table = Table("statement", "claimed", "observed", "holds", title=f"claims, {name} costs")
    for claim in claims:
        table.add_row(claim.statement, claim.claimed, claim.observed, claim.verdict)
    return table
