"""The page: facts, charts and the privacy statement of one run or of several, as one file that needs nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from statistics import fmean
from string import Template

from dordis.report import svg
from dordis.report.alerts import Alert, Level, alerts, common_alerts
from dordis.report.charts import Chart
from dordis.report.facts import Facts
from dordis.report.figures import figures, in_order
from dordis.report.numbers import NOTHING, count, duration, number, percent
from dordis.report.statement import Item, Statement, statement
from dordis.report.svg import escaped
from dordis.report.tables import TextTable, comparison, evictions, failures, rounds, settings

GENERATOR = b'<meta name="generator" content="dordis report">'
"""What a report is known by."""
_TILES = 3  # metrics that are shown in large


def page(all_facts: Sequence[Facts]) -> str:
    """Write the report of one run or of several; everything from the records is escaped."""
    several = len(all_facts) > 1
    title = "Comparison of " + count(len(all_facts), "run") if several else f"{all_facts[0].label}: report of a run"
    parts = [_compared(all_facts, title)] if several else []
    parts += [_run(facts, place, several=several) for place, facts in enumerate(all_facts)]
    return filled(title, "\n".join(parts), [facts.run.manifest.version for facts in all_facts])


def filled(title: str, body: str, versions: Iterable[str]) -> str:
    """Write a page with the style of all pages; the body is markup, and all else is escaped."""
    known = ", ".join(dict.fromkeys(versions))
    return Template(resources.files("dordis.report").joinpath("template.html").read_text("utf-8")).substitute(
        title=escaped(title),
        chart_style=svg.STYLE,
        body=body,
        footer=f"Made by dordis report from the records of runs of dordis {escaped(known)}.",
    )


def _compared(all_facts: Sequence[Facts], title: str) -> str:
    links = ", ".join(f'<a href="#run-{i + 1}">{escaped(facts.label)}</a>' for i, facts in enumerate(all_facts))
    return "\n".join(
        [
            '<p class="kicker">dordis</p>',
            f"<h1>{escaped(title)}</h1>",
            f'<p class="about">{links}</p>',
            *map(_alert, common_alerts(all_facts)),
            "<h2>Side by side</h2>",
            _table(comparison(all_facts), "compare"),
            "<h2>Charts</h2>",
            _charts(figures(all_facts)),
        ]
    )


def _run(facts: Facts, place: int, *, several: bool) -> str:
    manifest, tag = facts.run.manifest, "h2" if several else "h1"
    stated = statement(facts)
    about = f"begun {manifest.created[:19].replace('T', ' ')} UTC; {facts.stopped}"
    body = [
        "" if several else '<p class="kicker">dordis: report of a run</p>',
        f"<{tag}>{escaped(facts.label)}</{tag}>",
        f'<p class="about">{escaped(about)}</p>',
        _badges(facts),
        *(_alert(alert) for alert in alerts(facts) if not several or alert.level is Level.NOTE),
        _tiles(facts),
        _summed_up(stated, place, over=facts.overspent),
        "<h2>Charts</h2>",
        _charts(figures([facts])),
        f'<h2 id="statement-{place + 1}">Privacy statement</h2>',
        _statement(stated),
        "<h2>Details</h2>",
        _folded("Settings and plan", _table(settings(facts), "facts")),
        _folded(f"Rounds ({len(facts.run.rounds)})", _table(rounds(facts), "long")),
        _failed(facts),
        _evicted(facts),
    ]
    return f'<section id="run-{place + 1}"{" class=run" if several else ""}>' + "\n".join(body) + "</section>"


def _badges(facts: Facts) -> str:
    manifest = facts.run.manifest
    words = "the protocol was not run" if manifest.fidelity == "ideal" else "every message was sent"
    if facts.trust.simulated:
        words = f"simulated {manifest.where}, {words}"
    protocol = f"protocol: {manifest.protocol}, {manifest.mode}"
    badges = {
        f"fidelity: {manifest.fidelity} ({words})": "badge warning" if facts.trust.simulated else "badge",
        f"noise: {manifest.noise}": "badge plain",
        protocol + (", protects nobody" if facts.exposure else ""): f"badge {'warning' if facts.exposure else 'plain'}",
        f"mechanism: {manifest.mechanism}": "badge plain",
    }
    return "".join(f'<span class="{kind}">{escaped(text)}</span>' for text, kind in badges.items())


def _tiles(facts: Facts) -> str:
    run, plan = facts.run, facts.run.manifest.plan
    measured = sorted(facts.last_metrics.items(), key=lambda item: in_order(item[0]))[:_TILES]
    tiles = [_tile(number(value), f"{name}, last") for name, value in measured]
    if not facts.trust.proves:
        tiles.append(_tile("none", "epsilon: nothing is proved", bad=True))
    else:
        tiles.append(
            _tile(number(facts.stated), _epsilon_label(facts), bad=facts.overspent or bool(facts.ledger.problem))
        )
        tiles.append(_tile(number(plan.delta), "delta"))
    lost = "dropout"
    if run.rounds:
        mean, cohort = fmean(facts.dropped), fmean(len(record.clients) for record in run.rounds)
        lost = f"dropout, {number(mean, 3)} of {number(cohort, 3)} clients on average"
    tiles += [
        _tile(f"{facts.done}", f"rounds of {run.manifest.rounds}, {_taken(facts)}"),
        _tile(percent(facts.dropout), lost),
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _epsilon_label(facts: Facts) -> str:
    """Return the label of the large epsilon: spent, or stated with the epsilon spent so far."""
    budget = "" if facts.budget is None else f" of {number(facts.budget)}"
    if facts.proof is None or facts.proof.is_spent:
        return f"epsilon spent{budget}"
    return f"epsilon stated; spent so far {number(facts.spent)}{budget}"


def _taken(facts: Facts) -> str:
    here = "" if not facts.run.manifest.before else f"{len(facts.run.rounds)} of them in this run, "
    return f"{here}in {duration(facts.seconds)}"


def _tile(value: str, name: str, *, bad: bool = False) -> str:
    return f'<div class="tile{" bad" if bad else ""}"><b>{escaped(value)}</b><span>{escaped(name)}</span></div>'


def _alert(alert: Alert) -> str:
    return f'<p class="alert {alert.level.value}" role="note">{escaped(alert.text)}</p>'


def _statement(stated: Statement) -> str:
    kind = "card statement" if stated.proves else "card statement nothing"
    items = "".join(f"<dt>{escaped(item.heading)}</dt><dd>{_item(item)}</dd>" for item in stated.items)
    return f'<div class="{kind}"><p class="headline">{escaped(stated.headline)}</p><dl>{items}</dl></div>'


def _summed_up(stated: Statement, place: int, *, over: bool) -> str:
    kind = "summary" if stated.proves and not over else "summary nothing"
    link = f'<a href="#statement-{place + 1}">Privacy statement</a>'
    return f'<p class="{kind}">{escaped(stated.headline)} {link}</p>'


def _item(item: Item) -> str:
    points = "".join(f"<li{_monospaced(point)}>{escaped(point)}</li>" for point in item.points)
    return "".join(f"<p>{escaped(text)}</p>" for text in item.paragraphs) + (f"<ul>{points}</ul>" if points else "")


def _monospaced(point: str) -> str:
    return ' class="hash"' if len(point.rpartition(" ")[2]) == 64 else ""


def _charts(charts: Mapping[str, Chart]) -> str:
    return f'<div class="charts">{"".join(_figure(name, chart) for name, chart in charts.items())}</div>'


def _figure(name: str, chart: Chart) -> str:
    note = f"<figcaption>{escaped(chart.note)}</figcaption>" if chart.note else ""
    body = f'<p class="empty">{NOTHING} nothing to draw {NOTHING}</p>' if chart.is_empty else svg.drawing(chart)
    return f'<figure data-chart="{escaped(name)}"><h3>{escaped(chart.title)}</h3>{body}{note}</figure>'


def _table(table: TextTable, kind: str) -> str:
    head = "".join(f"<th scope=col>{escaped(name)}</th>" for name in table.head)
    rows = "".join(
        f"<tr><th scope=row>{escaped(row[0])}</th>{''.join(f'<td>{escaped(cell)}</td>' for cell in row[1:])}</tr>"
        for row in table.rows
    )
    header = f"<thead><tr>{head}</tr></thead>" if any(table.head) else ""
    return f'<div class="scroll {kind}"><table class="{kind}">{header}<tbody>{rows}</tbody></table></div>'


def _folded(name: str, body: str) -> str:
    return f"<details><summary>{escaped(name)}</summary>{body}</details>"


def _failed(facts: Facts) -> str:
    table = failures(facts)
    if not table.rows:
        return "<p>No attempt at a finished round failed.</p>"
    return _folded(f"Failed attempts ({len(table.rows)})", _table(table, "facts"))


def _evicted(facts: Facts) -> str:
    table = evictions(facts)
    return _folded(f"Evicted clients ({len(facts.run.evicted)})", _table(table, "facts")) if table.rows else ""
