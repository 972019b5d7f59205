"""The paper's round-time figure: under its cost mix, and with this library's kernels as measured on this machine."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from dordis.errors import InputError
from dordis.reproduce.claims import Claim, own_claims, padding_claim, paper_claims
from dordis.reproduce.costs import CLIENT, SERVER, Costs
from dordis.reproduce.measured import measure
from dordis.reproduce.paper_mix import OVERLAP, PAPER, UNPADDED
from dordis.reproduce.round_times import RoundTime, figure


def rounds(costs: Path | None, paper: bool, charts: Path | None, as_json: bool) -> None:
    """Model every configuration of the figure, and print it beside what is claimed.

    `costs` is a file to read measured costs from, or to write them to if it is not there yet.
    """
    mixes = mixes_of(costs, paper)
    found = {mix.name: figure(mix) for mix in mixes}
    claims = {name: claims_of(name, each) for name, each in found.items()}
    if charts is not None:
        from dordis.cli.reproduce_charts import round_charts, write

        write(charts, round_charts(mixes, found))
    if as_json:
        print(json.dumps(fields(mixes, found, claims)))
        return
    console = Console(soft_wrap=True)
    for mix in mixes:
        if mix not in (PAPER, OVERLAP):
            console.print(costs_table(mix))
        for table in round_tables(mix.name, found[mix.name]):
            console.print(table)
        console.print(claims_table(f"claims, {mix.name} costs", claims[mix.name]))


def claims_of(name: str, found: Sequence[RoundTime]) -> list[Claim]:
    """Return what is claimed of rounds under these costs."""
    if name == PAPER.name:
        return [*paper_claims(found), padding_claim(figure(UNPADDED))]
    return paper_claims(found) if name == OVERLAP.name else own_claims(found)


def mixes_of(path: Path | None, paper: bool) -> list[Costs]:
    """Return the paper's costs and, unless only those are wanted, measured ones, from a file if there is one."""
    if paper:
        return [PAPER, OVERLAP]
    if path is not None and path.exists():
        return [PAPER, OVERLAP, read(path)]
    measured = measure()
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(measured)))
    return [PAPER, OVERLAP, measured]


def read(path: Path) -> Costs:
    """Read costs that were measured before."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Costs)
    except (msgspec.DecodeError, OSError) as error:
        raise InputError(f"{path} holds no costs: {error}") from None


def fields(
    mixes: Sequence[Costs], found: Mapping[str, Sequence[RoundTime]], claims: Mapping[str, Sequence[Claim]]
) -> dict[str, object]:
    """Return everything as one JSON object."""
    return {
        "costs": {mix.name: msgspec.to_builtins(mix) for mix in mixes},
        "rounds": [each.fields() for rounds in found.values() for each in rounds],
        "claims": {name: msgspec.to_builtins(each) for name, each in claims.items()},
    }


def round_tables(name: str, rounds: Sequence[RoundTime]) -> Iterator[Table]:
    """Show each model and graph: a row for each rate of dropout and each way of adding noise."""
    groups = dict.fromkeys((each.model, each.clients, each.graph) for each in rounds)
    for model, n, graph in groups:
        mine = [each for each in rounds if (each.model, each.clients, each.graph) == (model, n, graph)]
        title = f"{model}, n = {n}, {graph}, {name} costs; other {mine[0].other:g} s"
        heads = ("dropout", "noise", "plain s", "pipelined s", "chunks", "speed-up", "over bound")
        table = Table(*heads, "idle c-comp, comm, s-comp: plain", "pipelined", title=title)
        for each in mine:
            table.add_row(
                f"{each.dropout:.0%}",
                each.scheme,
                f"{each.plain:,.1f}",
                f"{each.pipelined:,.1f}",
                str(each.chunks),
                f"{each.speedup:.2f}",
                f"{each.over_bound:.2f} {each.bottleneck}",
                *(", ".join(f"{1 - share:.0%}" for share in each_.values()) for each_ in _busy(each)),
            )
        yield table


def _busy(each: RoundTime) -> tuple[Mapping[str, float], Mapping[str, float]]:
    return each.plain_busy, each.pipelined_busy


def costs_table(costs: Costs) -> Table:
    """Show the seconds that each step was measured to cost."""
    table = Table("step", "of", "seconds", title="measured on this machine: CPU seconds, linear in counts")
    for step, laws in costs.laws.items():
        for which in (CLIENT, SERVER):
            if law := laws.get(which):
                terms = " + ".join(f"{value:.2e} {name}" for name, value in law.items())
                table.add_row(step, which, terms)
    return table


def claims_table(title: str, claims: Sequence[Claim]) -> Table:
    """Show claims beside what was found."""
    table = Table("statement", "claimed", "found", "holds", title=title)
    for claim in claims:
        verdict = "" if claim.holds is None else "yes" if claim.holds else "NO"
        table.add_row(claim.statement, claim.claimed, claim.found, verdict)
    return table
