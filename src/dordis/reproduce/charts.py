"""Charts of modelled rounds: bars for every configuration, what ran when, and the share of aggregation."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from dordis.pipeline.executor import Timeline
from dordis.protocol import SETUP, Resource
from dordis.report.charts import Chart, Gantt, Layer, Line, Lines, Mark, Stacked, Stretch
from dordis.reproduce.costs import Costs
from dordis.reproduce.round_times import WORKLOADS, Configuration, RoundTime, grouped, timelines

Named = tuple[str, Chart]


def round_charts(mixes: Sequence[Costs], times: Mapping[str, Sequence[RoundTime]]) -> Iterator[Named]:
    """Chart every configuration as bars, and for every model and graph what runs when at 10 % dropout."""
    for name, modelled in times.items():
        for (model, n, graph, rate), group in grouped(modelled, "model", "clients", "graph", "dropout").items():
            title = f"{_short(model)}, n = {n}, {graph}, {rate:.0%} lost: {name} costs"
            yield slug("bars", name, model, n, graph, f"{rate:.0%}"), bars(title, group)
    for mix, workload, plus in product(mixes, WORKLOADS, (False, True)):
        configuration = Configuration(workload, plus=plus)
        model, n, graph = workload.model, workload.clients, configuration.graph
        title = f"{_short(model)}, n = {n}, {graph}: {mix.name} costs"
        yield slug("gantt", mix.name, model, n, graph), gantt(title, *timelines(configuration, mix))


def bars(title: str, times: Sequence[RoundTime]) -> Stacked:
    """Chart one configuration: plain and pipelined for each way of adding noise, aggregation and the rest."""
    return Stacked(
        title,
        "noise; +p: in a pipeline",
        "seconds",
        tuple(label for time in times for label in (time.scheme, f"{time.scheme}+p")),
        (
            Layer("aggregation", tuple(seconds for time in times for seconds in (time.plain, time.pipelined))),
            Layer("other", tuple(time.other for time in times for _ in range(2))),
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
    for stretch in stretches:
        last = joined[-1] if joined else None
        if last and (last.row, last.kind) == (stretch.row, stretch.kind) and stretch.start <= last.end + 1e-9:
            joined[-1] = Stretch(last.row, last.kind, last.start, max(last.end, stretch.end))
        elif stretch.end > stretch.start:
            joined.append(stretch)
    return tuple(joined)


def share_charts(times: Mapping[str, Sequence[RoundTime]]) -> Iterator[Named]:
    """Chart the share of aggregation over the number of clients."""
    for name, modelled in times.items():
        marks = (Mark("paper, least", 0.86), Mark("paper, most", 0.97)) if name == "paper" else ()
        for graph, group in grouped(modelled, "graph").items():
            lines = tuple(
                Line("no noise" if scheme == "none" else scheme, tuple((float(t.clients), t.share) for t in same))
                for scheme, same in grouped(group, "scheme").items()
            )
            title = f"Aggregation in a plain round, {graph}: {name} costs"
            yield slug("share", name, graph), Lines(title, "clients", "share of the round", lines, marks=marks)


def slug(*parts: object) -> str:
    """Return a file name.

    >>> slug("bars", "VGG-19 20M", 16, "SecAgg+", "10%")
    'bars-vgg-19-20m-16-secaggplus-10'
    """
    text = "-".join(map(str, parts)).lower().replace("+", "plus").replace("%", "")
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def _short(model: str) -> str:
    """Return the name of a model without its size: there is little room for titles."""
    return model.split()[0]
