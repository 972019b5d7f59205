"""Charts of modelled rounds: bars for every configuration, what ran when, and the share of aggregation."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from dordis.pipeline.executor import Timeline
from dordis.protocol import SETUP, Resource
from dordis.report.charts import Chart, Gantt, Layer, Line, Lines, Mark, Stacked, Stretch
from dordis.report.svg import document
from dordis.reproduce.costs import Costs
from dordis.reproduce.round_times import TASKS, Configuration, RoundTime, timelines

Named = tuple[str, Chart]


def write(folder: Path, charts: Iterator[Named]) -> None:
    """Write charts as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in charts:
        (folder / f"{name}.svg").write_text(document(chart) + "\n", encoding="utf-8")


def round_charts(mixes: Sequence[Costs], found: Mapping[str, Sequence[RoundTime]]) -> Iterator[Named]:
    """Chart every configuration as bars, and for every model and graph what runs when at 10 % dropout."""
    for name, rounds in found.items():
        for model, n, graph, rate in dict.fromkeys((e.model, e.clients, e.graph, e.dropout) for e in rounds):
            mine = [e for e in rounds if (e.model, e.clients, e.graph, e.dropout) == (model, n, graph, rate)]
            yield slug("bars", name, model, n, graph, f"{rate:.0%}"), bars(name, mine)
    for mix in mixes:
        for task in TASKS:
            for plus in (False, True):
                configuration = Configuration(task, rate=Fraction(1, 10), plus=plus)
                graph = "SecAgg+" if plus else "SecAgg"
                title = f"{short(task.name)}, n = {task.clients}, {graph}: {mix.name} costs"
                yield (
                    slug("gantt", mix.name, task.name, task.clients, graph),
                    gantt(title, *timelines(configuration, mix)),
                )


def bars(name: str, rounds: Sequence[RoundTime]) -> Stacked:
    """Chart one configuration: plain and pipelined for each way of adding noise, aggregation and the rest."""
    one = rounds[0]
    return Stacked(
        f"{short(one.model)}, n = {one.clients}, {one.graph}, {one.dropout:.0%} lost: {name} costs",
        "noise; +p: in a pipeline",
        "seconds",
        tuple(label for each in rounds for label in (each.scheme, f"{each.scheme}+p")),
        (
            Layer("aggregation", tuple(value for each in rounds for value in (each.plain, each.pipelined))),
            Layer("other", tuple(each.other for each in rounds for _ in range(2))),
        ),
    )


def gantt(title: str, plain: Timeline, pipelined: Timeline) -> Gantt:
    """Chart what runs when: the plain round in one row, then the pipelined one, a row for each chunk.

    A stage lasts from its first request until the server has taken the last reply, which waits while the server is busy
    with another chunk.
    """
    stretches = [Stretch("plain", span.resource.value, span.start, span.end) for span in plain.spans]
    for span in sorted(pipelined.spans, key=lambda span: (span.chunk, span.start)):
        row = "set-up" if span.chunk == SETUP else f"chunk {span.chunk + 1}"
        stretches.append(Stretch(row, span.resource.value, span.start, span.end))
    shown = merged(stretches)
    rows = tuple(dict.fromkeys(stretch.row for stretch in shown))
    return Gantt(title, "seconds", "", rows, tuple(resource.value for resource in Resource), shown)


def merged(stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """Join stretches of a row that follow each other and are of the same kind: the steps of a stage."""
    joined: list[Stretch] = []
    for each in stretches:
        last = joined[-1] if joined else None
        if last and (last.row, last.kind) == (each.row, each.kind) and each.start <= last.end + 1e-9:
            joined[-1] = Stretch(last.row, last.kind, last.start, max(last.end, each.end))
        elif each.end > each.start:
            joined.append(each)
    return tuple(joined)


def share_charts(found: Mapping[str, Sequence[RoundTime]]) -> Iterator[Named]:
    """Chart the share of aggregation over the number of clients."""
    for name, rounds in found.items():
        for graph in dict.fromkeys(each.graph for each in rounds):
            mine = [each for each in rounds if each.graph == graph]
            lines = tuple(
                Line(
                    "no noise" if scheme == "none" else scheme,
                    tuple((float(each.clients), each.share) for each in mine if each.scheme == scheme),
                )
                for scheme in dict.fromkeys(each.scheme for each in mine)
            )
            marks = (Mark("paper, least", 0.86), Mark("paper, most", 0.97)) if name == "paper" else ()
            title = f"Aggregation in a plain round, {graph}: {name} costs"
            yield slug("share", name, graph), Lines(title, "clients", "share of the round", lines, marks=marks)


def short(model: str) -> str:
    """Return the name of a model without its size: there is little room for titles."""
    return model.split()[0]


def slug(*parts: object) -> str:
    """Return a file name.

    >>> slug("bars", "VGG-19 20M", 16, "SecAgg+", "10%")
    'bars-vgg-19-20m-16-secaggplus-10'
    """
    text = "-".join(str(part) for part in parts).lower().replace("+", "plus").replace("%", "")
    return "".join(letter if letter.isalnum() else "-" for letter in text)
