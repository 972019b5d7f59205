"""The tables of a report: settings, rounds, failed attempts, evictions, comparisons; rounds and metrics also as CSV."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dordis.protocols.assisted.disputes import Complaints
from dordis.records.manifest import PlanRecord
from dordis.records.server_status import read_complaints
from dordis.report.facts import RunFacts, count_dropouts, differing_settings
from dordis.report.figures import bytes_per_client, split_words
from dordis.report.numbers import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_range,
)


@dataclass(frozen=True)
class TextTable:
    """Rows of text; the first cell of a row is its heading."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


ALWAYS_COMPARED = ("privacy.noise.kind", "simulation.fidelity", "protocol.use", "protocol.mode", "federation.rounds")
"""Settings that a comparison shows for every run, even if all runs have the same value."""


def describe_folding(plan: PlanRecord) -> str:
    """Return as text the number of coordinates to which updates are projected, and the error that projection adds."""
    if not plan.buckets:
        return "nothing shorter"
    error = (
        "" if plan.projection_error is None else f", error of a sum + {format_percent(plan.projection_error)} at most"
    )
    return f"{plan.buckets:,} coordinates, {plan.dim / plan.buckets:.3g} times fewer{error}"


def describe_further(plan: PlanRecord) -> Iterator[str]:
    """Yield a sentence for each further sum that a round releases: name, length, bound and share of the budget."""
    for value in plan.further or ():
        yield (
            f"Every round also releases the sum of '{value.name}': {format_count(value.length, 'number')} of norm "
            f"{value.bound:,} at most from each client, for {format_percent(value.share)} of the budget. It has noise "
            "of its own, and epsilon covers it."
        )


def settings_table(facts: RunFacts) -> TextTable:
    """Return a table of the settings and the noise plan of a run; both are fixed before the first round."""
    manifest, plan = facts.run.manifest, facts.run.manifest.plan
    rows = {
        "run": facts.run_id,
        "version": manifest.version,
        "clients, a round, rounds": f"{manifest.clients:,}, {manifest.per_round:,}, {manifest.rounds:,}",
        "metrics": manifest.measured or "by their names",
        "noise strategy": manifest.noise,
        "mechanism": manifest.mechanism,
        "protocol, mode": f"{manifest.protocol}, {manifest.mode}",
        "selection": manifest.selection,
        "fidelity": manifest.fidelity,
        "registry": manifest.registry or "none: clients have no keys",
        "beacon": manifest.beacon or "none",
        "coordinates of an update": _dims(facts),
        "bits of a coordinate": str(plan.bits),
        "folded into": describe_folding(plan),
        "one masked update": format_bytes(plan.upload_bytes),
        "clip": format_number(plan.clip)
        + ("" if plan.quantile is None else f", then the {format_percent(plan.quantile)} quantile"),
        "scale": format_number(plan.scale, 6),
        "noise on the sum, standard deviation": format_number(plan.sigma),
        "noise multiplier, noise over what a client can change": format_number(plan.multiplier),
        "noise on the sum, times what a trusted server would add": format_number(plan.times_trusted),
        "epsilon planned": format_number(plan.epsilon),
        "delta": format_number(plan.delta),
        "rounds of one client, at most": str(plan.cap),
        "answers that a round needs (threshold)": str(plan.threshold),
        "dropouts tolerated": str(plan.tolerance),
        "colluders tolerated": str(plan.colluders),
    }
    return TextTable(("", ""), tuple(rows.items()))


def _dims(facts: RunFacts) -> str:
    """Return the number of coordinates of an update as text, or all such numbers if they differ between rounds."""
    longest = facts.run.manifest.plan.dim
    lengths = list(dict.fromkeys(record.dim or longest for record in facts.run.rounds))
    had = ", ".join(f"{dim:,}" for dim in lengths)
    return f"{longest:,}" if lengths in ([], [longest]) else f"at most {longest:,}; in turn {had}"


def rounds_table(facts: RunFacts) -> TextTable:
    """Return a table with a row for every finished round: metrics, epsilon, clients, noise, time, traffic."""
    measured = {line.number: line.values for line in facts.run.metrics}
    names = tuple(dict.fromkeys(name for line in facts.run.metrics for name in line.values))
    head = ("round", *names, "epsilon", "index", "invited", "clients", "dropped", "uploaded", "sum check")
    costs = ("wanted", "left", "counted on", "time", "up, a client", "down, a client", "of it the model", "missed sums")
    rows = tuple(
        (
            str(record.number),
            *(format_number(measured.get(record.number, {}).get(name)) for name in names),
            format_number(record.epsilon),
            str(record.index),
            format_number(record.invited),
            str(len(record.clients)),
            str(count_dropouts(record)),
            format_range(record.survivors),
            record.sum_check,
            *(format_number(variance, 5) for variance in (record.wanted, record.left, record.charged)),
            format_duration(record.seconds),
            *(
                format_bytes(bytes_per_client(total, record))
                for total in (record.up, record.down, record.model_bytes, record.replay_bytes)
            ),
        )
        for record in facts.reportable_rounds
    )
    return TextTable((*head, *costs), rows)


def failures_table(facts: RunFacts) -> TextTable:
    """Return a table with a row for every failed attempt of a round."""

    def tried_again(index: int) -> str:
        """Return the number of the round that finished after the failed attempt with this index."""
        return next((str(record.number) for record in facts.run.rounds if record.index > index), "not finished")

    rows = tuple(
        (str(failed.index), tried_again(failed.index), failed.reason, ", ".join(map(str, failed.survivors)))
        for failed in facts.run.failures
    )
    return TextTable(("index", "tried again as round", "reason", "clients in a spoilt sum"), rows)


def evictions_table(facts: RunFacts) -> TextTable:
    """Return a table with a row for every eviction of clients: from which run, after which index, and why."""
    rows = tuple(
        (", ".join(map(str, line.clients)), line.run[:16] or "this run", str(line.index), line.reason)
        for line in facts.run.evictions
    )
    return TextTable(("clients", "evicted from", "after index", "reason"), rows)


def complaints_table(facts: RunFacts) -> TextTable:
    """Return a table with a row for every evicted helper and client of an assisted run, and every left-out client.

    A client is left out if a helper has complained about it, and nobody was proved wrong.
    """
    is_assisted = facts.run.manifest.protocol == "assisted"
    complaints = read_complaints(facts.run.path) if is_assisted else Complaints()
    helpers = [(f"helper {h}", "evicted: it was proved wrong") for h in sorted(complaints.helpers)]
    evicted = [(f"client {u}", "evicted: it was proved wrong") for u in sorted(complaints.clients)]
    named = sorted({u for _, u in complaints.edges})
    by = {u: ", ".join(str(h) for h, v in sorted(complaints.edges) if v == u) for u in named}
    left_out = [(f"client {u}", f"left out: named by helper {by[u]}") for u in named]
    return TextTable(("party", "state"), (*helpers, *evicted, *left_out))


def comparison_table(all_facts: Sequence[RunFacts]) -> TextTable:
    """Return a table with a column for every run, and a row for every differing setting and every result."""
    configured = differing_settings([facts.run for facts in all_facts])
    differing = tuple((key, *values) for key, values in configured.items() if key not in ALWAYS_COMPARED)
    names = dict.fromkeys(name for facts in all_facts for name in facts.last_metrics)
    columns = [_column(facts, tuple(names)) for facts in all_facts]
    rows = tuple((name, *(column[name] for column in columns)) for name in columns[0])
    return TextTable(("", *(facts.label for facts in all_facts)), (*differing, *rows))


def _column(facts: RunFacts, names: Sequence[str]) -> dict[str, str]:
    run, plan = facts.run, facts.run.manifest.plan
    proved = facts.trust.proves
    spent = (
        "nothing is proved"
        if not proved
        else format_number(facts.spent) + (", OVERSPENT" if facts.is_overspent else "")
    )
    took = [record.seconds for record in run.rounds]
    up = [sent for record in run.rounds if (sent := bytes_per_client(record.up, record)) is not None]
    return {
        "noise strategy": run.manifest.noise,
        "fidelity": run.manifest.fidelity,
        "protocol, mode": f"{run.manifest.protocol}, {run.manifest.mode}",
        **{f"{name}, last": format_number(facts.last_metrics.get(name)) for name in names},
        "epsilon": format_number(facts.reportable_epsilon) if proved else "nothing is proved",
        "epsilon spent": spent,
        "budget": format_number(facts.budget) if proved else format_number(None),
        "delta": format_number(plan.delta) if proved else format_number(None),
        "ledger": "DOES NOT VERIFY" if facts.ledger.problem else "verified" if facts.ledger.summary else "none",
        "rounds finished": f"{len(run.rounds)} of {run.manifest.rounds}",
        "ended": run.result.stopped if run.result else "no result",
        "dropout": format_percent(facts.dropout_rate),
        "noise that counts, over its target": format_range(facts.noise_ratios, 3),
        "time of a round, mean": format_duration(sum(took) / len(took) if took else None),
        "bytes up, a client and round": format_bytes(sum(up) / len(up) if up else None),
    }


def rounds_csv(all_facts: Sequence[RunFacts]) -> str:
    """Return every finished round of all runs as CSV, with columns for the dropouts and seconds of each stage."""
    records = [record for facts in all_facts for record in facts.run.rounds]
    lost = dict.fromkeys(stage for record in records for stage in record.dropped)
    stages = dict.fromkeys(stage for record in records for stage in record.stages)
    costs = ("started", "seconds", "up", "down", "model_bytes", "replay_bytes")
    fields = ("number", "index", *costs, "wanted", "left", "charged", "epsilon", "clip", "invited")
    head = ["run", *fields, "clients", "survivors", "failures"]
    head += [f"dropped: {split_words(stage)}" for stage in lost] + [
        f"seconds: {split_words(stage)}" for stage in stages
    ]
    rows: list[list[object]] = []
    for facts in all_facts:
        for record in facts.reportable_rounds:
            row: list[object] = [facts.label, *(getattr(record, field) for field in fields), len(record.clients)]
            row += [min(record.survivors, default=0), len(record.failures)]
            row += [len(record.dropped.get(stage, ())) for stage in lost]
            rows.append(row + [record.stages.get(stage) for stage in stages])
    return _csv(head, rows)


def metrics_csv(all_facts: Sequence[RunFacts]) -> str:
    """Return all metrics of all runs as CSV: one line per run, round and metric."""
    rows = [
        [facts.label, line.number, name, value]
        for facts in all_facts
        for line in facts.run.metrics
        for name, value in line.values.items()
    ]
    return _csv(["run", "number", "metric", "value"], rows)


def _csv(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
