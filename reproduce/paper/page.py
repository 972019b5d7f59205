"""The page docs/results/paper.md, and the same page in HTML with charts."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dordis.report.charts import STYLE, draw_inline
from reproduce.paper import CANNOT_RUN, FULL, Content, Grid, Section, Verdict
from reproduce.paper.jobs import Finished

TITLE = "The paper, figure by figure"
INTRODUCTION = (
    "This page has every figure and table of the paper's evaluation and motivation, with the paper's numbers beside "
    "ours. The paper is *Dordis: Efficient Federated Learning with Dropout-Resilient Differential Privacy*. Each "
    "section says first what was run. For each statement of the paper the column *verdict* says whether it is true "
    "here: `holds`, `NO: differs, because ...` or `cannot be run here`. `no claim of the paper` stands beside a number "
    "of ours that the paper does not give. A number is called *fitted* if the costs in our model of round times were "
    "chosen so that this number results; a fitted number proves nothing. A section without results says `not run`. "
    "Figures 5 and 7 and table 4 describe the protocol, the architecture and the programming interface: "
    "[paper_map.md](../paper_map.md) says where they are in dordis. The [glossary](../glossary.md) has the words of "
    "dordis, such as *ledger* and *survivor*."
)
TERMS = (
    "n is the number of clients in a round, and d the number of coordinates of an update. T is the tolerance: the "
    "number of clients that may drop out before the upload. t is the threshold: the number of clients that must "
    "answer until the end of a round. *Orig*, *Early*, *Con-2*, *Con-5*, *Con-8* and *XNoise* are ways to divide the "
    "noise over the clients. With Orig every client adds an even share of the planned noise. Early is the same, but "
    "the run ends when its budget of epsilon is spent. With Con-2, Con-5 and Con-8 clients add enough noise for a "
    "dropout of 20, 50 and 80 %, in this order. With XNoise clients add enough noise for T dropouts, and the excess "
    "is removed from the sum. XNoise has two noise schemes: in `exact`, the paper's, a client has T removable "
    "components of noise, in `single` it has one. At *ideal fidelity* the result of a round is computed directly, "
    "without masks, with noise of the same distribution. The *paper's accounting* adds the Renyi divergences of all "
    "rounds, as if every client took part in every round. A *stand-in* is other data or a smaller model in the place "
    "of the paper's."
)
DATA = (
    "DIR has the data sets of the presets `mnist-writers`, `cifar10-features` and `chat`, and an .npz file of "
    "devices' availability with `avail` in its name. A *job* is one run, one measurement or one simulation."
)
COUNTS = (
    "The table has the number of statements of each section by their verdict. The column *seconds* adds up the times "
    "of all jobs of a section, on the machine that ran them. A job that several sections need is counted in each of "
    "them."
)
CHARTS = "The charts of this section are in `paper.html`, which `python -m reproduce all` writes beside this page."
NOT_RUN = "not run"


def command(section: Section, scale: str) -> str:
    """Return the command that prints a section's numbers."""
    return section.command if scale != FULL else f"{section.command} --scale paper"


def describe_command(scale: str) -> str:
    """Say which command writes the page, and from which data."""
    return f"`python -m reproduce all --scale {scale} --data-dir DIR` writes this page. {DATA}"


def missing_jobs(section: Section, scale: str, finished: Mapping[str, Finished]) -> list[str]:
    """Return the labels of the jobs without which a section is not shown, each with the error if the job failed."""
    labels = [job.label for job in section.jobs(scale) if not job.alone]
    missing = [label for label in labels if label not in finished or finished[label].error]
    return [f"{label}{': ' + finished[label].error if label in finished else ''}" for label in missing]


def show_section(section: Section, scale: str, finished: Mapping[str, Finished]) -> Content | None:
    """Return the content of a section, or None if a job without `alone` has no result."""
    if missing_jobs(section, scale, finished):
        return None
    results: dict[str, Any] = {}
    for job in section.jobs(scale):
        done = finished.get(job.label, Finished(None, NOT_RUN, 0.0))
        results[job.label] = {CANNOT_RUN: done.error} if done.error else done.result
    return section.show(results)


def explain_missing(section: Section, scale: str, finished: Mapping[str, Finished]) -> str:
    """Say how many jobs of a section have no result, and the first error, in one line."""
    missing = missing_jobs(section, scale, finished)
    text = f"{len(missing)} of {len(section.jobs(scale))} jobs have no result"
    failed = [line for line in missing if ": " in line]
    return f"{text}; {len(failed)} failed: {' '.join(failed[0].split())}" if failed else f"{text}."


def seconds_of(section: Section, scale: str, finished: Mapping[str, Finished]) -> float:
    """Return the seconds that a section's jobs took, one after the other."""
    return sum(finished[job.label].seconds for job in section.jobs(scale) if job.label in finished)


def write_markdown(sections: Sequence[Section], scale: str, finished: Mapping[str, Finished], how_run: str = "") -> str:
    """Return the whole page; `how_run` is a sentence on the run that gave the results (`RunNote.describe`)."""
    parts = [
        f"# {TITLE}",
        INTRODUCTION,
        TERMS,
        describe_command(scale),
        *([how_run] if how_run else []),
        COUNTS,
        _summary(sections, scale, finished),
    ]
    for section in sections:
        parts += [f"## {section.number.capitalize()}: {section.title}", section.what, f"    {command(section, scale)}"]
        content = show_section(section, scale, finished)
        if content is None:
            parts.append(f"**{NOT_RUN}**: {explain_missing(section, scale, finished)}")
            continue
        if content.verdicts:
            parts.append(_markdown_grid(verdict_grid(content.verdicts)))
        for grid in content.grids:
            parts += [f"{grid.title}:", _markdown_grid(grid)]
        parts += content.remarks
        if content.charts:
            parts.append(CHARTS)
    return "\n\n".join(parts) + "\n"


def _summary(sections: Sequence[Section], scale: str, finished: Mapping[str, Finished]) -> str:
    rows = []
    for section in sections:
        content = show_section(section, scale, finished)
        seconds = f"{seconds_of(section, scale, finished):,.0f}"
        if content is None:
            rows.append((section.number, NOT_RUN, "", "", ""))
            continue
        counts = [sum(v.holds for v in content.verdicts), sum(v.verdict.startswith("NO") for v in content.verdicts)]
        others = len(content.verdicts) - sum(counts)
        rows.append((section.number, str(counts[0]), str(counts[1]), str(others), seconds))
    return _markdown_grid(Grid("", ("section", "holds", "NO", "fitted, no claim, or cannot be run", "seconds"), rows))


def verdict_grid(verdicts: Sequence[Verdict]) -> Grid:
    """Return verdicts as a table."""
    rows = [(v.statement, v.paper, v.ours, v.verdict) for v in verdicts]
    return Grid("", ("statement", "paper", "ours", "verdict"), rows)


def _markdown_grid(grid: Grid) -> str:
    lines = [grid.heads, ["---"] * len(grid.heads), *grid.rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def write_html(sections: Sequence[Section], scale: str, finished: Mapping[str, Finished], how_run: str = "") -> str:
    """Return the page with its charts, as one file."""
    texts = [INTRODUCTION.split(" Figures 5")[0], TERMS, describe_command(scale), *([how_run] if how_run else [])]
    body = [f"<h1>{TITLE}</h1>", *(f"<p>{to_html(text)}</p>" for text in texts)]
    for section in sections:
        content = show_section(section, scale, finished)
        body.append(f"<h2>{html.escape(section.number.capitalize())}: {html.escape(section.title)}</h2>")
        body.append(f"<p>{to_html(section.what)}</p><pre>{html.escape(command(section, scale))}</pre>")
        if content is None:
            body.append(f"<p><b>{NOT_RUN}</b>: {to_html(explain_missing(section, scale, finished))}</p>")
            continue
        grids = [verdict_grid(content.verdicts)] if content.verdicts else []
        body += [_html_grid(grid) for grid in (*grids, *content.grids)]
        body += [draw_inline(chart) for chart in content.charts]
        body += [f"<p>{to_html(remark)}</p>" for remark in content.remarks]
    style = (
        "body { font: 15px system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }"
        "table { border-collapse: collapse; margin: 1rem 0; } th, td { border: 1px solid #bbb; padding: .3rem .5rem; }"
    )
    head = f'<meta charset="utf-8"><title>{TITLE}</title><style>{style}{STYLE}</style>'
    return f"<!doctype html>\n<html lang=en><head>{head}</head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"


def _html_grid(grid: Grid) -> str:
    head = "".join(f"<th>{to_html(cell)}</th>" for cell in grid.heads)
    rows = "".join(f"<tr>{''.join(f'<td>{to_html(str(c))}</td>' for c in row)}</tr>\n" for row in grid.rows)
    title = f"<caption>{to_html(grid.title)}</caption>" if grid.title else ""
    return f"<table>{title}<tr>{head}</tr>\n{rows}</table>"


def to_html(text: str) -> str:
    """Return a text of the page as HTML: code, emphasis, and links as their words, since the file stands alone.

    >>> to_html("In `a*b*c` *x* < y: [the glossary](../glossary.md)")
    'In <code>a*b*c</code> <em>x</em> &lt; y: the glossary'
    """
    return "".join(_mark(part) for part in re.split(r"(`[^`]+`)", html.escape(text)))


def _mark(part: str) -> str:
    if part.startswith("`"):
        return f"<code>{part[1:-1]}</code>"
    part = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", part)
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", part)
