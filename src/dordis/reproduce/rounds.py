"""The paper's round times and the share of aggregation in a round: under its costs, and under those measured here."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from dordis.errors import InputError
from dordis.reproduce import Experiment
from dordis.reproduce.charts import round_charts, share_charts
from dordis.reproduce.claims import Claim, own_claims, padding_claim, paper_claims, share_claims
from dordis.reproduce.costs import CLIENT, SERVER, Costs
from dordis.reproduce.measured import measure
from dordis.reproduce.paper_mix import OVERLAP, PAPER, UNPADDED
from dordis.reproduce.round_times import RoundTime, figure, grouped, shares


def cost_mixes(path: Path | None, paper: bool) -> list[Costs]:
    """Return the paper's costs and, unless only those are wanted, measured ones: from a file, or written to it."""
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


def rounds(mixes: Sequence[Costs]) -> Experiment:
    """Model every configuration of the paper's figure (sections 6.3 and 6.4), and compare it with what is claimed."""
    times = {mix.name: figure(mix) for mix in mixes}
    claims = {name: _claims(name, modelled) for name, modelled in times.items()}
    tables: list[Table] = []
    for mix in mixes:
        tables += [] if mix in (PAPER, OVERLAP) else [costs_table(mix)]
        tables += [*round_tables(mix.name, times[mix.name]), claims_table(mix.name, claims[mix.name])]
    return Experiment(_data(mixes, times, claims), tables, round_charts(mixes, times))


def overhead(mixes: Sequence[Costs]) -> Experiment:
    """Model ResNet-18 at 10 % dropout with more and more clients (section 2.3.2): the share of aggregation."""
    shown = [mix for mix in mixes if mix is not OVERLAP]  # of interest for pipelining alone
    times = {mix.name: shares(mix) for mix in shown}
    claims = {PAPER.name: share_claims(times[PAPER.name])}
    tables = [share_table(name, modelled) for name, modelled in times.items()]
    tables += [claims_table(name, stated) for name, stated in claims.items()]
    return Experiment(_data(shown, times, claims), tables, share_charts(times))


def _claims(name: str, times: Sequence[RoundTime]) -> list[Claim]:
    if name == PAPER.name:
        return [*paper_claims(times), padding_claim(figure(UNPADDED))]
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
    """Show each model and graph: a row for each rate of dropout and each way of adding noise."""
    for (model, n, graph), group in grouped(times, "model", "clients", "graph").items():
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
        table = Table(*heads, "idle c-comp, comm, s-comp: plain", "pipelined", title=title)
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
    """Show the share of aggregation in plain and in pipelined rounds, by clients and by noise."""
    schemes = ("no noise" if scheme == "none" else scheme for scheme in grouped(times, "scheme"))
    title = f"aggregation in a round of {times[0].model}, 10 % dropout, {name} costs: plain / pipelined"
    table = Table("graph", "n", *schemes, title=title)
    for (graph, n), group in grouped(times, "graph", "clients").items():
        table.add_row(graph, str(n), *(f"{time.share:.1%} / {time.pipelined_share:.1%}" for time in group))
    return table


def costs_table(costs: Costs) -> Table:
    """Show the seconds that each step was measured to cost."""
    table = Table("step", "of", "seconds", title="measured on this machine: CPU seconds, linear in counts")
    for step, laws in costs.laws.items():
        for which in (CLIENT, SERVER):
            if law := laws.get(which):
                table.add_row(step, which, " + ".join(f"{value:.2e} {count}" for count, value in law.items()))
    return table


def claims_table(name: str, claims: Sequence[Claim]) -> Table:
    """Show claims beside what was observed."""
    table = Table("statement", "claimed", "observed", "holds", title=f"claims, {name} costs")
    for claim in claims:
        verdict = "" if claim.holds is None else "yes" if claim.holds else "NO"
        table.add_row(claim.statement, claim.claimed, claim.observed, verdict)
    return table
