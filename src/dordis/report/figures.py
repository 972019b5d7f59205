"""The charts of a report: of one run in detail, or of several runs side by side.

The *target* of a round's noise is the planned noise variance of the sum.  The *charged* noise variance is the part of
the variance left in the sum that counts for privacy.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dordis.privacy.mechanisms import NoiseFrom
from dordis.records.run_records import RoundRecord
from dordis.report.charts import BarChart, Chart, LineChart, Mark, Point, Series, Value
from dordis.report.facts import RunFacts, count_dropouts
from dordis.report.numbers import format_bytes, format_number

MOST_BARS, MOST_LAYERS = 40, 8
"""Largest numbers of bars in a chart and of layers in a bar.

If there are more rounds than MOST_BARS, groups of rounds are averaged; if there are more layers than MOST_LAYERS, the
smallest are merged.
"""
ROUND = "round"
TARGET = Mark("target", 1.0)
_Measure = Callable[[RoundRecord], Value]


def draw_figures(all_facts: Sequence[RunFacts]) -> dict[str, Chart]:
    """Return the charts of one or several runs, keyed by file name; the note of a chart without data says why."""
    charts: dict[str, Chart] = {**metric_charts(all_facts), "epsilon": epsilon_chart(all_facts)}
    if len(all_facts) == 1:
        (facts,) = all_facts
        charts |= {
            "dropouts": dropout_stages_chart(facts),
            "noise_ratio": noise_ratio_chart(facts),
            "noise": noise_chart(facts),
        }
        charts |= clipping_charts(facts)
    else:
        charts |= {"dropout": dropout_chart(all_facts), "noise_ratio": noise_ratios_chart(all_facts)}
    return charts | {"seconds": stage_seconds_chart(all_facts), "traffic": traffic_chart(all_facts)}


def metric_charts(all_facts: Sequence[RunFacts]) -> dict[str, LineChart]:
    """Return a line chart over rounds for every metric of the application, by file name; one line per run."""
    names = dict.fromkeys(name for facts in all_facts for line in facts.run.metrics for name in line.values)
    charts = {}
    for place, name in enumerate(sorted(names, key=metric_order)):
        lines = tuple(
            Series(facts.label, tuple((m.number, m.values[name]) for m in facts.run.metrics if name in m.values))
            for facts in all_facts
        )
        charts[f"metric_{place + 1}"] = LineChart(name, ROUND, "", lines, zero=_from_zero(lines))
    return charts


def epsilon_chart(all_facts: Sequence[RunFacts]) -> LineChart:
    """Return a chart of the epsilon spent over rounds, with the budget as a reference line."""
    proved = [facts for facts in all_facts if facts.stated_epsilon is not None]
    budgets = {f"budget {format_number(facts.budget)}": facts.budget for facts in proved if facts.budget is not None}
    marks = tuple(Mark(name if len(budgets) > 1 else "budget", budget) for name, budget in budgets.items())
    note = "of the client that has spent most" if proved else "no epsilon can be stated"
    lines = tuple(
        Series(facts.label, tuple((r.number, r.epsilon) for r in facts.reportable_rounds)) for facts in all_facts
    )
    return LineChart("Epsilon spent", ROUND, "epsilon", lines, marks=marks, note=note)


def dropout_stages_chart(facts: RunFacts) -> BarChart:
    """Return a bar chart of the number of dropouts in each round, by stage."""
    T = facts.run.manifest.plan.tolerance
    names = dict.fromkeys(stage for record in facts.run.rounds for stage in record.dropped)
    order = facts.run.manifest.stages
    stages = sorted(names, key=lambda stage: order.index(stage) if stage in order else len(order))
    layers = {split_words(stage): _lost_at(stage) for stage in stages}
    marks = (Mark("tolerated before the upload", float(T)),) if T and layers else ()
    note = "by the first request that was not answered" if layers else "nobody dropped out"
    return _bars([facts], "Dropouts by stage", "clients", layers, marks=marks, note=note)


def dropout_chart(all_facts: Sequence[RunFacts]) -> LineChart:
    """Return a chart of the share of a round's clients that dropped out, over rounds; one line per run."""
    lines = tuple(
        _line(facts.label, facts, lambda record: count_dropouts(record) / len(record.clients)) for facts in all_facts
    )
    note = "clients that stopped answering, at whichever stage"
    return LineChart("Dropout", ROUND, "part of the round", lines, note=note)


def noise_chart(facts: RunFacts) -> LineChart:
    """Return a chart over rounds of three noise variances: the target, the one left in the sum, and the charged one."""
    lines = (
        _line("wanted", facts, lambda record: record.wanted),
        _line("left in the sum", facts, lambda record: record.left),
        _line("counted on", facts, lambda record: record.charged),
    )
    note = "; ".join(filter(None, ["in squared integer units", _noise_note(facts)]))
    return LineChart("Noise", ROUND, "variance", lines, note=note)


def noise_ratio_chart(facts: RunFacts) -> LineChart:
    """Return a chart over rounds of two noise variances, left in the sum and charged, each divided by the target."""
    lines = (
        _line("left in the sum", facts, lambda record: _divide(record.left, record.wanted)),
        _line("counted on", facts, lambda record: _divide(record.charged, record.wanted)),
    )
    title, y = "Noise over its target", "ratio of variances"
    return LineChart(title, ROUND, y, lines, marks=(TARGET,), note=_noise_note(facts))


def noise_ratios_chart(all_facts: Sequence[RunFacts]) -> LineChart:
    """Return a chart of the charged noise variance divided by its target, over rounds; one line per run."""
    lines = tuple(_line(facts.label, facts, facts.noise_ratio) for facts in all_facts)
    return LineChart("Noise that counts, over its target", ROUND, "ratio of variances", lines, marks=(TARGET,))


def clipping_charts(facts: RunFacts) -> dict[str, Chart]:
    """Return charts of the adaptive clip bound and of the share of norms below it; no chart if the bound is fixed."""
    quantile = facts.run.manifest.plan.quantile
    if quantile is None:
        return {}
    bounds = (_line("clip bound", facts, lambda record: record.clip),)
    below = (_line("norms below it", facts, lambda record: record.below),)
    marks, note = (Mark("target", quantile),), "a noisy count, which is charged"
    return {
        "clip": LineChart("Clip bound", ROUND, "norm", bounds, zero=_from_zero(bounds)),
        "below": LineChart("Norms below the clip bound", ROUND, "part", below, marks=marks, note=note),
    }


def stage_seconds_chart(all_facts: Sequence[RunFacts]) -> BarChart:
    """Return a bar chart of the mean seconds that each stage of a round took."""
    names = dict.fromkeys(stage for facts in all_facts for record in facts.run.rounds for stage in record.stages)
    note = "stages of several chunks may overlap; then a bar is longer than its round took"
    return _bars(
        all_facts, "Time by stage", "seconds", {split_words(name): _spent_on(name) for name in names}, note=note
    )


def traffic_chart(all_facts: Sequence[RunFacts]) -> BarChart:
    """Return a bar chart of the mean bytes that a client sends and receives in a round."""
    layers: dict[str, _Measure] = {
        "sent, in all": lambda record: bytes_per_client(record.up, record),
        "received, in all": lambda record: bytes_per_client(record.down, record),
        "received: the model": lambda record: bytes_per_client(record.model_bytes, record),
        "received: sums of missed rounds": lambda record: bytes_per_client(record.replay_bytes, record),
    }
    unsent = [facts.label for facts in all_facts if all(record.up is None for record in facts.run.rounds)]
    note = f"no message was sent in {', '.join(unsent)}" if unsent else ""
    if len(all_facts) == 1:
        one = format_bytes(all_facts[0].run.manifest.plan.upload_bytes)
        sent = f"of the bytes sent, one masked update has {one}"
        note = f"no message was sent; one masked update would be {one}" if unsent else sent
    return _bars(all_facts, "Bytes per client", "bytes", layers, stacked=False, note=note)


def metric_order(metric: str) -> bool:
    """Return a sort key that puts accuracies first."""
    return "accuracy" not in metric.lower()


def bytes_per_client(total: int | None, record: RoundRecord) -> Value:
    """Return `total`, a round's bytes, divided by the round's number of clients; None if bytes were not counted."""
    return None if total is None else total / len(record.clients)


def split_words(name: str) -> str:
    """Return the name of a stage as words in lower case.

    >>> split_words("CollectInput"), split_words("use output")
    ('collect input', 'use output')
    """
    return "".join(f" {c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def _line(name: str, facts: RunFacts, measure: _Measure) -> Series[Point]:
    return Series(name, tuple((record.number, measure(record)) for record in facts.run.rounds))


def _lost_at(stage: str) -> _Measure:
    return lambda record: float(len(record.dropped.get(stage, ())))


def _spent_on(stage: str) -> _Measure:
    return lambda record: record.stages.get(stage, 0.0)


def _bars(
    all_facts: Sequence[RunFacts], title: str, y: str, layers: Mapping[str, _Measure], **options: Any
) -> BarChart:
    """Return a chart with one bar for each run or, if there is a single run, for each group of its rounds.

    A bar has one layer for each entry of `layers`: a name, and a function that computes a value from the record of a
    round.  The height of a layer is the mean of these values.
    """
    several = len(all_facts) > 1
    bins = {facts.label: facts.run.rounds for facts in all_facts} if several else _group_rounds(all_facts[0].run.rounds)
    series = [
        Series(name, tuple(_mean(map(measure, part)) for part in bins.values())) for name, measure in layers.items()
    ]
    x, y = ("run", f"{y} of a round, mean") if several else (ROUND, y)
    return BarChart(title, x, y, _merge_layers(series), categories=tuple(bins), **options)


def _group_rounds(rounds: Sequence[RoundRecord]) -> dict[str, Sequence[RoundRecord]]:
    """Return at most MOST_BARS groups of consecutive rounds, keyed by their numbers, such as `1–3`."""
    width = -(-len(rounds) // MOST_BARS) or 1
    parts = [rounds[at : at + width] for at in range(0, len(rounds), width)]
    return {"–".join(map(str, dict.fromkeys((part[0].number, part[-1].number)))): part for part in parts}


def _merge_layers(layers: Sequence[Series[Value]]) -> tuple[Series[Value], ...]:
    """Return the layers in their order; of more than MOST_LAYERS layers, the smallest are replaced by their sum."""
    if len(layers) <= MOST_LAYERS:
        return tuple(layers)
    large = sorted(layers, key=lambda layer: -sum(value or 0.0 for value in layer.values))[: MOST_LAYERS - 1]
    rest = [layer.values for layer in layers if layer not in large]
    others = tuple(sum(value or 0.0 for value in column) for column in zip(*rest, strict=True))
    return *(layer for layer in layers if layer in large), Series(f"{len(rest)} others", others)


def _noise_note(facts: RunFacts) -> str:
    notes = {
        NoiseFrom.CLIENT: "every client counts on its own noise alone, a small part of what is in the sum",
        NoiseFrom.CLIENTS: "charged: less the noise that colluders may know; epsilon is as planned from the target up",
        NoiseFrom.NOBODY: "no noise was added",
    }
    return notes.get(facts.trust.noise, "")


def _from_zero(lines: Sequence[Series[Point]]) -> bool:
    """Tell whether the y axis should start at zero: only if the smallest value is below half of the largest value."""
    values = [y for line in lines for _, y in line.values if y is not None]
    return not values or min(values) < 0.5 * max(values)


def _divide(part: Value, whole: Value) -> Value:
    return part / whole if part is not None and whole else None


def _mean(values: Iterable[Value]) -> Value:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
