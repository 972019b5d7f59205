"""Figures 2 and 10: round times of the model under the paper's cost mix, beside rounds measured on a local cluster."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from reproduce.claims import Claim, paper_claims, share_claims
from reproduce.cluster.results import (
    ClusterResults,
    Setting,
    aggregation_share,
    figure_2_table,
    figure_10_table,
    read_results,
    speed_chart,
)
from reproduce.costs_paper import PAPER
from reproduce.paper import CANNOT, HOLDS, Content, Grid, Job, Results, Section, Verdict
from reproduce.paper.figures_2_10_measured import list_obstacles, measured_jobs, read_measured
from reproduce.round_times import WORKLOADS, run_figure, run_shares

MODEL = (
    "A model computes the times of rounds, in virtual time, from the costs of their steps. Some of these costs are "
    "taken from the paper's code, others are chosen to fit the paper's figures; the tables say which results are "
    "fitted. All these costs together are called the paper's cost mix. Beside the modelled times are times of real "
    "rounds of `dordis serve` and its clients, measured in network namespaces of one machine (`python -m reproduce "
    "cluster`). The commands of these measurements are below the tables, with the load: the mean number of processes "
    "that wanted a processor. A *plain* round has one chunk. A *pipelined* round has several chunks, so that the work "
    "on one chunk overlaps with the work on others; m is the number of chunks. The *speed-up* is the time of a plain "
    "round divided by the time of the pipelined round. The noise `none` is no noise at all. 1M is a million "
    "coordinates. Measured settings are named by n, d, the bandwidths of the slowest and of the fastest link, and the "
    "largest latency."
)
MODEL_10 = (
    f"{MODEL} The resources of a round are the server's computation (s-comp), the clients' computation (c-comp) and "
    "communication (comm). The idle share of a resource is the part of a round in which it does no work. To gain more "
    "means to have a larger speed-up. A configuration is a combination of a protocol (SecAgg or SecAgg+), a noise "
    "scheme and a dropout rate. In the measured tables *seconds* is the time of aggregation in the fastest round. "
    "*From costs* is predicted from costs of single steps that were measured on an idle machine; *from rounds* is "
    "predicted from the measured rounds with other numbers of chunks. *error* is the relative difference of the "
    "prediction on its left from the measured seconds."
)
LEAST_GAIN = 1.3
"""The least speed-up of the paper's large models."""
PAPER_MBPS = 20.9
"""A little below the slowest link of the paper, 21 Mbps."""
PAPER_SHARE = (0.86, 0.97)
"""The share of aggregation in the paper's plain rounds."""


def round_time_jobs(scale: str) -> Sequence[Job]:
    """Return the jobs of figure 10: the model, and measured rounds."""
    return [Job("round-times", {}, "round times"), *measured_jobs()]


def share_jobs(scale: str) -> Sequence[Job]:
    """Return the jobs of figure 2: the model, and the measured rounds of figure 10."""
    return [Job("shares", {}, "share times"), *measured_jobs()]


def run_round_times(arguments: Mapping[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """Simulate every configuration of figure 10; return the paper's claims and a row for each workload."""
    times = run_figure(PAPER)
    rows = []
    for workload in WORKLOADS:
        same = [t for t in times if (t.model, t.clients) == (workload.model, workload.clients)]
        for graph in ("SecAgg", "SecAgg+"):
            gains = [t.speedup for t in same if t.graph == graph]
            plain = [t.plain + t.other for t in same if t.graph == graph]
            rows.append([workload.model, str(workload.clients), graph, f"{min(plain):,.0f} to {max(plain):,.0f}"])
            rows[-1] += [f"{min(gains):.2f} to {max(gains):.2f}"]
    return {"claims": [claim_data(claim) for claim in paper_claims(times)], "rows": rows}


def run_share_times(arguments: Mapping[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """Simulate figure 2; return the paper's claims and the share of aggregation by clients and graph."""
    times = run_shares(PAPER)
    rows = [[t.graph, str(t.clients), t.scheme, f"{t.share:.1%}"] for t in times]
    return {"claims": [claim_data(claim) for claim in share_claims(times)], "rows": rows}


def claim_data(claim: Claim) -> list[str]:
    """Return a claim as strings: statement, claimed value, observed value, verdict."""
    return [claim.statement, claim.claimed, claim.observed, claim.verdict]


def as_verdicts(claims: Sequence[Sequence[str]]) -> list[Verdict]:
    """Return claims as verdicts: `yes` becomes `holds`."""
    return [Verdict(s, claimed, seen, HOLDS if said == "yes" else said) for s, claimed, seen, said in claims]


def show_figure_10(results: Results) -> Content:
    """Show the model's speed-ups, and the measured ones."""
    stored, (cluster, remarks) = results["round times"], find_measured(results)
    heads = ("model", "clients", "protocol", "seconds of a plain round", "speed-up")
    modelled = Grid("modelled rounds, over all noise schemes and dropout rates", heads, stored["rows"])
    grids = [table_to_grid(figure_10_table(setting)) for setting in cluster.settings]
    verdicts = [*as_verdicts(stored["claims"]), *obstacle_verdicts(results), *gain_verdicts(cluster)]
    charts = [speed_chart(cluster.settings)] if cluster.settings else []
    return Content(verdicts, [modelled, *grids], charts, remarks)


def show_figure_2(results: Results) -> Content:
    """Show the share of aggregation, modelled and measured."""
    stored, (cluster, remarks) = results["share times"], find_measured(results)
    heads = ("protocol", "clients", "noise", "share of aggregation in a plain round")
    grids = [Grid("modelled rounds", heads, stored["rows"])]
    verdicts = [*as_verdicts(stored["claims"]), *obstacle_verdicts(results)]
    shares = [aggregation_share(setting.plain, cluster) for setting in cluster.settings]
    known = [share for share in shares if share is not None]
    if known:
        grids.append(table_to_grid(figure_2_table(cluster)))
        least, most = PAPER_SHARE
        verdicts.append(
            Verdict.decide(
                "share of aggregation in a plain round with SecAgg, measured",
                "86-91 %, up to 97 %",
                f"{min(known):.0%} to {max(known):.0%}",
                least <= min(known) and max(known) <= most + 0.005,
                "the training time is that of one CNN, and models and links of these settings are not the paper's",
            )
        )
    return Content(verdicts, grids, (), remarks)


def find_measured(results: Results) -> tuple[ClusterResults, list[str]]:
    """Return the rounds measured in this run, or else the stored ones, and remarks on how they were measured."""
    cluster, remarks = read_measured(results), []
    if not cluster.settings:
        cluster = read_results()
        remarks.append(
            "No rounds were measured in this run: measured rounds are those of [an earlier one](cluster/README.md)."
        )
    for setting in cluster.settings:
        commands = ", ".join(f"`{line}`" for line in setting.command.split("\n"))
        where = f"at a load of {setting.load:g} on {setting.cores} cores"
        remarks.append(f"The rounds with {setting.title} were measured by {commands}, {where}.")
    return cluster, remarks


def obstacle_verdicts(results: Results) -> list[Verdict]:
    """Return a verdict with the reason for each setting that could not be measured in this run."""
    return [
        Verdict(said, "no statement", "not run", f"{CANNOT}{reason}")
        for said, reason in list_obstacles(results).items()
    ]


def gain_verdicts(cluster: ClusterResults) -> list[Verdict]:
    """Compare the largest measured speed-ups with the paper's."""
    theirs = [setting for setting in cluster.settings if has_paper_links(setting)]
    reason = "transfers take most of our rounds, and the kernels are faster than the paper's"
    most, where = largest_gain(theirs)
    any_links, place = largest_gain(cluster.settings)
    said = "largest measured speed-up of aggregation by pipelining"
    return [
        Verdict.decide(f"{said}, on the paper's links", "1.3-2.5", f"{most:.2f} ({where})", most >= LEAST_GAIN, reason),
        Verdict(f"{said}, on any links", "no statement", f"{any_links:.2f} ({place})", "no claim of the paper"),
    ]


def largest_gain(settings: Sequence[Setting]) -> tuple[float, str]:
    """Return the largest ratio of plain to pipelined seconds, and the setting in which it was measured."""
    gains = [
        (
            plain.best / row.best,
            f"n = {setting.clients}, d = {setting.dim:,}, m = {row.chunks}, {describe_devices(setting)}",
        )
        for setting in settings
        for plain in setting.rows
        if plain.chunks == 1
        for row in setting.rows
    ]
    return max(gains, default=(1.0, "nothing measured"))


def has_paper_links(setting: Setting) -> bool:
    """Tell whether links have the paper's bandwidths, 21 to 210 Mbps, and devices are not slowed down."""
    return setting.mbps is not None and setting.mbps[0] >= PAPER_MBPS and setting.slowness == 1


def describe_devices(setting: Setting) -> str:
    """Say how fast the links and devices of a measured setting are."""
    links = "links of one's own" if setting.mbps is None else f"{setting.mbps[0]:g} to {setting.mbps[1]:g} Mbps"
    return links if setting.slowness == 1 else f"{links}, devices up to {setting.slowness:g} times slower"


def table_to_grid(table: Table) -> Grid:
    """Return a table of the terminal as strings."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    heads = [str(column.header) for column in table.columns]
    return Grid(str(table.title or ""), heads, list(zip(*columns, strict=True)))


SECTIONS = (
    Section("figure 2", "Impact of secure aggregation on training efficiency", MODEL, share_jobs, show_figure_2),
    Section("figure 10", "Round times, plain and in a pipeline", MODEL_10, round_time_jobs, show_figure_10),
)
