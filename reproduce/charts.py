"""Charts of simulated rounds: bars for every configuration, timelines, and the share of aggregation."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, product

from dordis.pipeline.executor import Span, Timeline
from dordis.protocol import SETUP, Resource
from dordis.report.charts import BarChart, Chart, GanttChart, LineChart, Mark, Series, Stretch
from reproduce.costs import Costs
from reproduce.round_times import WORKLOADS, Configuration, RoundTime, group_by, timelines

Named = tuple[str, Chart]


def round_charts(mixes: Sequence[Costs], times: Mapping[str, Sequence[RoundTime]]) -> Iterator[Named]:
    """Chart every configuration as bars, and for every model and graph the timelines of its rounds at 10 % dropout."""
    for name, modelled in times.items():
        for (model, n, graph, rate), group in group_by(modelled, "model", "clients", "graph", "dropout").items():
            title = f"{_short(model)}, n = {n}, {graph}, {rate:.0%} lost: {name} costs"
            yield slug("bars", name, model, n, graph, f"{rate:.0%}"), bars(title, group)
    for mix, workload, plus in product(mixes, WORKLOADS, (False, True)):
        configuration = Configuration(workload, plus=plus)
        model, n, graph = workload.model, workload.clients, configuration.graph
        title = f"{_short(model)}, n = {n}, {graph}: {mix.name} costs"
        yield slug("gantt", mix.name, model, n, graph), gantt(title, *timelines(configuration, mix))


def bars(title: str, times: Sequence[RoundTime]) -> BarChart:
    """Chart one configuration: plain and pipelined seconds for each noise scheme, split into aggregation and other."""
    layers = (
        Series("aggregation", tuple(seconds for time in times for seconds in (time.plain, time.pipelined))),
        Series("other", tuple(time.other for time in times for _ in range(2))),
    )
    names = tuple(name for time in times for name in (time.scheme, f"{time.scheme}+p"))
    return BarChart(title, "noise; +p: in a pipeline", "seconds", layers, categories=names)


def gantt(title: str, plain: Timeline, pipelined: Timeline) -> GanttChart:
    """Chart the timelines: the plain round in one row, the pipelined round in a row for each chunk.

    A stage lasts from its first request until the server has taken the last reply, which waits while the server is busy
    with another chunk.
    """
    rows: dict[str, list[Span]] = {"plain": list(plain.spans)}
    for span in sorted(pipelined.spans, key=lambda span: (span.chunk, span.start)):
        rows.setdefault("set-up" if span.chunk == SETUP else f"chunk {span.chunk + 1}", []).append(span)
    work: dict[Resource, list[Stretch]] = {resource: [] for resource in Resource}
    for row, spans in rows.items():
        for resource, stage in groupby(spans, lambda span: span.resource):
            steps = list(stage)
            if steps[-1].end > steps[0].start:
                work[resource].append(Stretch(row, steps[0].start, steps[-1].end))
    series = tuple(Series(resource.value, tuple(stretches)) for resource, stretches in work.items())
    shown = {stretch.row for stretches in work.values() for stretch in stretches}
    return GanttChart(title, "seconds", "", series, rows=tuple(row for row in rows if row in shown))


def share_charts(times: Mapping[str, Sequence[RoundTime]]) -> Iterator[Named]:
    """Chart the share of aggregation over the number of clients."""
    for name, modelled in times.items():
        marks = (Mark("paper, least", 0.86), Mark("paper, most", 0.97)) if name == "paper" else ()
        for graph, group in group_by(modelled, "graph").items():
            lines = tuple(
                Series("no noise" if scheme == "none" else scheme, tuple((float(t.clients), t.share) for t in same))
                for scheme, same in group_by(group, "scheme").items()
            )
            title = f"Aggregation in a plain round, {graph}: {name} costs"
            yield slug("share", name, graph), LineChart(title, "clients", "share of the round", lines, marks=marks)


def slug(*parts: object) -> str:
    """Join parts to a file name without suffix.

    >>> slug("bars", "VGG-19 20M", 16, "SecAgg+", "10%")
    'bars-vgg-19-20m-16-secaggplus-10'
    """
    text = "-".join(map(str, parts)).lower().replace("+", "plus").replace("%", "")
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def _short(model: str) -> str:
    """Return the name of a model without its size, to keep titles short."""
    return model.split()[0]
