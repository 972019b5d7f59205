"""Charts of runs: what each of them shows, by name.  With one run in detail, with several side by side."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dordis.federation.records import RoundRecord
from dordis.privacy.mechanisms.mechanism import NoiseFrom
from dordis.protocols.secagg.messages import REPLIES
from dordis.report.charts import Chart, Grouped, Layer, Line, Lines, Mark, Stacked, Value
from dordis.report.facts import Facts, gone
from dordis.report.numbers import number, size

MOST_BARS = 40
"""Rounds beyond so many are drawn as means over several."""
ROUND = "round"
_ORDER = [request.__name__ for request in REPLIES]


@dataclass(frozen=True)
class Figure:
    """A chart and the name of its file; where nothing can be drawn, its note says why."""

    name: str
    chart: Chart


def figures(facts: Facts) -> tuple[Figure, ...]:
    """Return the charts of one run."""
    return (
        *metrics([facts]),
        Figure("epsilon", epsilon([facts])),
        Figure("dropouts", dropouts(facts)),
        Figure("noise_ratio", noise_ratio(facts)),
        Figure("noise", noise(facts)),
        *clipping(facts),
        Figure("seconds", seconds(facts)),
        Figure("traffic", traffic(facts)),
    )


def comparison(all_facts: Sequence[Facts]) -> tuple[Figure, ...]:
    """Return charts that lay several runs over each other."""
    lost = "clients that stopped answering, at whichever stage"
    return (
        *metrics(all_facts),
        Figure("epsilon", epsilon(all_facts)),
        Figure("dropout", _lines(all_facts, "Dropout", "part of the round", _dropped_part, note=lost)),
        Figure(
            "noise_ratio",
            _lines(
                all_facts,
                "Noise that counts, over its target",
                "ratio of variances",
                Facts.ratio,
                (Mark("target", 1.0),),
            ),
        ),
        Figure("seconds", _mean_seconds(all_facts)),
        Figure("traffic", _mean_traffic(all_facts)),
    )


def metrics(all_facts: Sequence[Facts]) -> tuple[Figure, ...]:
    """Return a chart for everything that the application measured."""
    names = dict.fromkeys(name for facts in all_facts for line in facts.run.metrics for name in line.values)
    found = []
    for place, name in enumerate(sorted(names, key=in_order)):
        lines = tuple(
            Line(
                facts.label,
                tuple((line.number, line.values[name]) for line in facts.run.metrics if name in line.values),
            )
            for facts in all_facts
        )
        found.append(Figure(f"metric_{place + 1}", Lines(name, ROUND, "", lines, zero=_from_zero(lines))))
    return tuple(found)


def epsilon(all_facts: Sequence[Facts]) -> Lines:
    """Chart what was spent against the budget."""
    proved = [facts for facts in all_facts if facts.trust.proves]
    budgets = dict.fromkeys(facts.budget for facts in proved if facts.budget is not None)
    names = ["budget"] if len(budgets) == 1 else [f"budget {number(budget)}" for budget in budgets]
    marks = tuple(Mark(name, budget) for name, budget in zip(names, budgets, strict=True))
    note = "of the client that has spent most" if proved else "nothing is proved, so that there is no epsilon"

    def spent(facts: Facts, record: RoundRecord) -> Value:
        return record.epsilon if facts in proved else None

    return _lines(all_facts, "Epsilon spent", "epsilon", spent, marks, note=note)


def dropouts(facts: Facts) -> Stacked:
    """Chart who stopped answering, by stage."""
    plan, rounds = facts.run.manifest.plan, facts.run.rounds
    names = dict.fromkeys(stage for record in rounds for stage in record.dropped)
    stages = sorted(names, key=lambda stage: _ORDER.index(stage) if stage in _ORDER else len(_ORDER))
    layers = [(spaced(stage), [float(len(record.dropped.get(stage, ()))) for record in rounds]) for stage in stages]
    marks = (Mark("T, tolerated before the upload", float(plan.tolerance)),) if plan.tolerance and layers else ()
    note = "by the first request that was not answered" if layers else "nobody dropped out"
    return Stacked("Dropouts by stage", ROUND, "clients", *_bars(rounds, layers), marks=marks, note=note)


def noise(facts: Facts) -> Lines:
    """Chart the variances: wanted, left in the sum, and counted on."""
    rounds = facts.run.rounds
    lines = (
        Line("wanted", tuple((record.number, record.wanted) for record in rounds)),
        Line("left in the sum", tuple((record.number, record.left) for record in rounds)),
        Line("counted on", tuple((record.number, record.charged) for record in rounds)),
    )
    note = "; ".join(filter(None, ["in squared integer units", _noise_note(facts)]))
    return Lines("Noise", ROUND, "variance", lines, note=note)


def noise_ratio(facts: Facts) -> Lines:
    """Chart the same over what was wanted."""
    rounds = facts.run.rounds
    lines = (
        Line("left in the sum", tuple((record.number, _over(record.left, record.wanted)) for record in rounds)),
        Line("counted on", tuple((record.number, _over(record.charged, record.wanted)) for record in rounds)),
    )
    marks = (Mark("target", 1.0),)
    return Lines("Noise over its target", ROUND, "ratio of variances", lines, marks=marks, note=_noise_note(facts))


def clipping(facts: Facts) -> tuple[Figure, ...]:
    """Chart the clip bound, where it follows a quantile of the norms."""
    quantile, rounds = facts.run.manifest.plan.quantile, facts.run.rounds
    if quantile is None:
        return ()
    bounds = (Line("clip bound", tuple((record.number, record.clip) for record in rounds)),)
    below = (Line("norms below it", tuple((record.number, record.below) for record in rounds)),)
    marks, note = (Mark("target", quantile),), "a noisy count, which is charged"
    return (
        Figure("clip", Lines("Clip bound", ROUND, "norm", bounds, zero=_from_zero(bounds))),
        Figure("below", Lines("Norms below the clip bound", ROUND, "part", below, marks=marks, note=note)),
    )


def seconds(facts: Facts) -> Stacked:
    """Chart how long the stages took."""
    rounds = facts.run.rounds
    names = dict.fromkeys(stage for record in rounds for stage in record.stages)
    layers = [(spaced(stage), [record.stages.get(stage) for record in rounds]) for stage in names]
    note = "stages of several chunks may overlap; then a bar is longer than its round took"
    return Stacked("Time by stage", ROUND, "seconds", *_bars(rounds, _merged(layers)), note=note)


def traffic(facts: Facts) -> Grouped:
    """Chart the bytes of a client, on average over the clients of a round."""
    rounds, one = facts.run.rounds, size(facts.run.manifest.plan.upload_bytes)
    layers = [
        ("up", [each(record.up, record) for record in rounds]),
        ("down", [each(record.down, record) for record in rounds]),
    ]
    unsent = all(record.up is None for record in rounds)
    note = f"no message was sent; one masked update would be {one}" if unsent else f"of it one masked update: {one}"
    return Grouped("Bytes per client", ROUND, "bytes", *_bars(rounds, layers), note=note)


def in_order(metric: str) -> bool:
    """Sort metrics by it: accuracies first, then as they come."""
    return "accuracy" not in metric.lower()


def each(total: int | None, record: RoundRecord) -> Value:
    """Return a client's part of the bytes of a round, on average."""
    return None if total is None else total / len(record.clients)


def spaced(name: str) -> str:
    """Write the name of a message as words.

    >>> spaced("CollectInput"), spaced("use output")
    ('collect input', 'use output')
    """
    return "".join(f" {c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def _lines(
    all_facts: Sequence[Facts],
    title: str,
    y: str,
    value: Callable[[Facts, RoundRecord], Value],
    marks: tuple[Mark, ...] = (),
    note: str = "",
) -> Lines:
    lines = tuple(
        Line(facts.label, tuple((record.number, value(facts, record)) for record in facts.run.rounds))
        for facts in all_facts
    )
    return Lines(title, ROUND, y, lines, marks=marks, note=note)


def _bars(
    rounds: Sequence[RoundRecord], layers: Iterable[tuple[str, Sequence[Value]]]
) -> tuple[tuple[str, ...], tuple[Layer, ...]]:
    """Return categories and layers: every round, or means over as many as make the bars few enough."""
    width = -(-len(rounds) // MOST_BARS) or 1
    parts = [slice(at, at + width) for at in range(0, len(rounds), width)]
    names = [(str(rounds[part][0].number), str(rounds[part][-1].number)) for part in parts]
    categories = tuple(first if first == last else f"{first}–{last}" for first, last in names)
    return categories, tuple(Layer(name, tuple(_mean(values[part]) for part in parts)) for name, values in layers)


def _merged(layers: Sequence[tuple[str, Sequence[Value]]], most: int = 7) -> list[tuple[str, Sequence[Value]]]:
    """Keep the largest layers in their order, and add up the others, so that colours are told apart."""
    if len(layers) <= most + 1:
        return list(layers)
    by_size = sorted(layers, key=lambda layer: -sum(value or 0.0 for value in layer[1]))
    large = {name for name, _ in by_size[:most]}
    rest = [values for name, values in layers if name not in large]
    others: list[Value] = [sum(value or 0.0 for value in column) for column in zip(*rest, strict=True)]
    return [*(layer for layer in layers if layer[0] in large), (f"{len(rest)} others", others)]


def _mean_seconds(all_facts: Sequence[Facts]) -> Stacked:
    names = dict.fromkeys(stage for facts in all_facts for record in facts.run.rounds for stage in record.stages)
    layers = [
        (spaced(name), [_mean([record.stages.get(name, 0.0) for record in facts.run.rounds]) for facts in all_facts])
        for name in names
    ]
    stacked = tuple(Layer(name, tuple(values)) for name, values in _merged(layers))
    return Stacked("Time by stage", "run", "seconds of a round, mean", tuple(f.label for f in all_facts), stacked)


def _mean_traffic(all_facts: Sequence[Facts]) -> Grouped:
    up = tuple(_mean([each(record.up, record) for record in facts.run.rounds]) for facts in all_facts)
    down = tuple(_mean([each(record.down, record) for record in facts.run.rounds]) for facts in all_facts)
    unsent = [facts.label for facts in all_facts if facts.run.rounds and facts.run.rounds[0].up is None]
    note = f"no message was sent in {', '.join(unsent)}" if unsent else ""
    categories, layers = tuple(facts.label for facts in all_facts), (Layer("up", up), Layer("down", down))
    return Grouped("Bytes per client", "run", "bytes of a round, mean", categories, layers, note=note)


def _noise_note(facts: Facts) -> str:
    notes = {
        NoiseFrom.CLIENT: "every client counts on its own noise alone, a small part of what is in the sum",
        NoiseFrom.CLIENTS: "counted on: without what T_C colluders may know; from the target on, epsilon is as planned",
        NoiseFrom.NOBODY: "no noise was added",
    }
    return notes.get(facts.trust.noise, "")


def _from_zero(lines: Sequence[Line]) -> bool:
    """Tell whether an axis from zero still shows what changes: values within a narrow band far from it do not."""
    values = [y for line in lines for _, y in line.points if y is not None]
    return not values or min(values) < 0.5 * max(values)


def _dropped_part(facts: Facts, record: RoundRecord) -> float:
    return gone(record) / len(record.clients)


def _over(part: Value, whole: Value) -> Value:
    return part / whole if part is not None and whole else None


def _mean(values: Sequence[Value]) -> Value:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
