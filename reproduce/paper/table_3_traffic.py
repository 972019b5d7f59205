"""Table 3: what XNoise and rebasing add to the traffic of a survivor, counted in encoded messages."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from dordis.report.charts import BarChart, Series
from reproduce.network import CLIENTS, PAPER_REBASING, PAPER_XNOISE, count_rows, rebasing_megabytes
from reproduce.paper import Content, Grid, Job, Results, Section, Verdict

MESSAGES = (
    "Real rounds of SecAgg with updates of 1,000 coordinates were run for each number of clients, noise scheme and "
    "dropout rate, and the bytes of a survivor's encoded messages were counted. The tables have these bytes less those "
    "under Orig. In the worst case only t clients answer the request to unmask; in the usual case all clients that "
    "uploaded answer it. An MB is 2^20 bytes, as in the paper. The bytes of rebasing, the paper's alternative to "
    "XNoise, are computed from the length of the model."
)
REMARKS = (
    "The paper's figures are compared with the bytes that a survivor sends and receives together in the worst case; "
    "about half of these are sent.",
    "Rebasing is simulated for its cost only: no epsilon is proved for it, and the paper describes no protocol for it.",
    "In `single`, our default, a client has one seed of removable noise; in `exact`, the paper's scheme, it has T.",
)


def jobs(scale: str) -> Sequence[Job]:
    """Return one job for each number of clients, which counts the bytes of survivors."""
    return [Job("traffic", {"clients": n}, f"traffic {n}") for n in CLIENTS]


def run_traffic(arguments: Mapping[str, Any], data_dir: Path | None) -> list[dict[str, Any]]:
    """Count the bytes of survivors at every dropout rate, for one number of clients."""
    rows = count_rows([arguments["clients"]], lambda what: None)
    return [{"rate": str(row.rate), "clients": row.clients, "formula": row.formula, "ours": row.ours} for row in rows]


def show(results: Results) -> Content:
    """Compare counted megabytes, both directions, with the paper's."""
    counted = [row for n in CLIENTS for row in results[f"traffic {n}"]]
    rows, ratios = [], []
    for row in sorted(counted, key=lambda row: (row["rate"], row["clients"])):
        rate, n, ours = Fraction(row["rate"]), row["clients"], row["ours"]
        paper = PAPER_XNOISE[rate, n]
        ratios.append(ours["exact_worst"] / paper)
        cells = (ours["exact_worst"], ours["exact"], ours["exact_worst_up"])
        single = (ours["single"], ours["single_worst_up"])
        rows.append(
            (f"{float(rate):.0%}", str(n), f"{paper}", *(f"{x:.2f}" for x in cells), *(f"{x:.4f}" for x in single))
        )
    heads = (
        "dropout",
        "clients",
        "paper",
        "exact, sent and received, worst case",
        "exact, sent and received, usual case",
        "exact, sent, worst case",
        "single, sent and received, usual case",
        "single, sent, worst case",
    )
    again = [(f"{w // 10**6}M", f"{PAPER_REBASING[w]}", f"{rebasing_megabytes(w)['ours']:.1f}") for w in PAPER_REBASING]
    grids = [
        Grid("XNoise: additional MB of a survivor, whatever the model's size", heads, rows),
        Grid("rebasing: additional MB of a survivor", ("parameters", "paper", "ours"), again),
    ]
    return Content(verdicts(counted, ratios), grids, [chart(counted)], REMARKS)


def verdicts(counted: Sequence[Mapping[str, Any]], ratios: Sequence[float]) -> list[Verdict]:
    """Check the paper's statements on the footprint."""
    largest = max(row["ours"]["exact_worst"] for row in counted)
    close = max(abs(rebasing_megabytes(w)["ours"] / paper - 1) for w, paper in PAPER_REBASING.items())
    return [
        Verdict.decide(
            "MB of XNoise (exact), sent and received, divided by the paper's MB, within 30 %",
            "1",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            0.7 <= min(ratios) <= max(ratios) <= 1.3,
            "our shares for one client travel in one ciphertext, where the paper has 120 bytes for each",
        ),
        Verdict.decide(
            "MB of rebasing for 5M, 50M and 500M parameters, within 1 %",
            "11.9, 119.2, 1192.1",
            f"within {close:.1%}",
            close <= 0.01,
            "updates are padded to whole blocks",
        ),
        Verdict.decide(
            "the bytes of XNoise do not grow with the model, and are fewer than those of rebasing",
            "yes",
            f"at most {largest:.1f} MB; rebasing 11.9 MB and more",
            largest < min(PAPER_REBASING.values()),
            "seeds outweigh a small model",
        ),
    ]


def chart(counted: Sequence[Mapping[str, Any]]) -> BarChart:
    """Chart both directions at 10 % dropout."""
    shown = sorted((row for row in counted if row["rate"] == "1/10"), key=lambda row: row["clients"])
    paper = tuple(PAPER_XNOISE[Fraction(1, 10), row["clients"]] for row in shown)
    ours = (("ours, exact", "exact_worst"), ("ours, single", "single_worst"))
    series = (Series("paper", paper), *(Series(n, tuple(r["ours"][key] for r in shown)) for n, key in ours))
    categories = tuple(str(row["clients"]) for row in shown)
    title = "Table 3: what XNoise adds, both directions, 10 % dropout"
    return BarChart(title, "clients in a round", "MB", series, categories=categories, stacked=False)


SECTIONS = (Section("table 3", "Additional network footprint of a survivor", MESSAGES, jobs, show),)
