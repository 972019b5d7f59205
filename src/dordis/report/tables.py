"""Tables of runs: settings, rounds, failed attempts, several runs side by side; and the same as CSV for programs."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from dordis.federation.manifest import PlanRecord
from dordis.report.facts import Facts, gone
from dordis.report.figures import per_client, spaced
from dordis.report.naming import differences
from dordis.report.numbers import duration, number, percent, size, span


@dataclass(frozen=True)
class TextTable:
    """Rows of text, each headed by its first cell."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


TOLD = ("privacy.noise.kind", "simulation.fidelity", "protocol.use", "protocol.mode", "federation.rounds")
"""Settings that a comparison tells in any case."""


def folding(plan: PlanRecord) -> str:
    """Say into how many coordinates updates were folded, and at which cost."""
    if not plan.buckets:
        return "nothing shorter"
    error = "" if plan.projection_error is None else f", error of a sum + {percent(plan.projection_error)} at most"
    return f"{plan.buckets:,} coordinates, {plan.dim / plan.buckets:.3g} times fewer{error}"


def settings(facts: Facts) -> TextTable:
    """Return what was fixed before the first round."""
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
        "folded into": folding(plan),
        "one masked update": size(plan.upload_bytes),
        "clip": number(plan.clip) + ("" if plan.quantile is None else f", then the {percent(plan.quantile)} quantile"),
        "scale": number(plan.scale, 6),
        "noise on the sum, standard deviation": number(plan.sigma),
        "noise multiplier, noise over what a client can change": number(plan.multiplier),
        "noise on the sum, times what a trusted server would add": number(plan.times_trusted),
        "epsilon planned": number(plan.epsilon),
        "delta": number(plan.delta),
        "rounds of one client, at most": str(plan.cap),
        "answers that a round needs (threshold)": str(plan.threshold),
        "dropouts tolerated": str(plan.tolerance),
        "colluders tolerated": str(plan.colluders),
    }
    return TextTable(("", ""), tuple(rows.items()))


def _dims(facts: Facts) -> str:
    """Return the length of updates, or all lengths that they had."""
    longest = facts.run.manifest.plan.dim
    lengths = list(dict.fromkeys(record.dim or longest for record in facts.run.rounds))
    had = ", ".join(f"{dim:,}" for dim in lengths)
    return f"{longest:,}" if lengths in ([], [longest]) else f"at most {longest:,}; in turn {had}"


def rounds(facts: Facts) -> TextTable:
    """Return a row for every finished round."""
    measured = {line.number: line.values for line in facts.run.metrics}
    names = tuple(dict.fromkeys(name for line in facts.run.metrics for name in line.values))
    head = ("round", *names, "epsilon", "index", "invited", "clients", "dropped", "uploaded", "sum check")
    costs = ("wanted", "left", "counted on", "time", "up, a client", "down, a client", "of it the model", "missed sums")
    rows = tuple(
        (
            str(record.number),
            *(number(measured.get(record.number, {}).get(name)) for name in names),
            number(record.epsilon),
            str(record.index),
            number(record.invited),
            str(len(record.clients)),
            str(gone(record)),
            span(record.survivors),
            record.sum_check,
            *(number(variance, 5) for variance in (record.wanted, record.left, record.charged)),
            duration(record.seconds),
            *(
                size(per_client(total, record))
                for total in (record.up, record.down, record.model_bytes, record.replay_bytes)
            ),
        )
        for record in facts.stated_rounds
    )
    return TextTable((*head, *costs), rows)


def failures(facts: Facts) -> TextTable:
    """Return a row for every attempt that failed."""

    def tried_again(index: int) -> str:
        """Name the round that was finished instead."""
        return next((str(record.number) for record in facts.run.rounds if record.index > index), "not finished")

    rows = tuple(
        (str(failed.index), tried_again(failed.index), failed.reason, ", ".join(map(str, failed.survivors)))
        for failed in facts.run.failures
    )
    return TextTable(("index", "tried again as round", "reason", "clients in a spoilt sum"), rows)


def evictions(facts: Facts) -> TextTable:
    """Return a row for every eviction."""
    rows = tuple(
        (", ".join(map(str, line.clients)), line.run[:16] or "this run", str(line.index), line.reason)
        for line in facts.run.evictions
    )
    return TextTable(("clients", "evicted from", "after index", "reason"), rows)


def comparison(all_facts: Sequence[Facts]) -> TextTable:
    """Return a column for every run: what differs in their configurations, and what they came to."""
    configured = differences([facts.run for facts in all_facts])
    differing = tuple((key, *values) for key, values in configured.items() if key not in TOLD)
    names = dict.fromkeys(name for facts in all_facts for name in facts.last_metrics)
    columns = [_column(facts, tuple(names)) for facts in all_facts]
    rows = tuple((name, *(column[name] for column in columns)) for name in columns[0])
    return TextTable(("", *(facts.label for facts in all_facts)), (*differing, *rows))


def _column(facts: Facts, names: Sequence[str]) -> dict[str, str]:
    run, plan = facts.run, facts.run.manifest.plan
    proved = facts.trust.proves
    spent = "nothing is proved" if not proved else number(facts.spent) + (", OVERSPENT" if facts.overspent else "")
    took = [record.seconds for record in run.rounds]
    up = [sent for record in run.rounds if (sent := per_client(record.up, record)) is not None]
    return {
        "noise strategy": run.manifest.noise,
        "fidelity": run.manifest.fidelity,
        "protocol, mode": f"{run.manifest.protocol}, {run.manifest.mode}",
        **{f"{name}, last": number(facts.last_metrics.get(name)) for name in names},
        "epsilon": number(facts.stated) if proved else "nothing is proved",
        "epsilon spent": spent,
        "budget": number(facts.budget) if proved else number(None),
        "delta": number(plan.delta) if proved else number(None),
        "ledger": "DOES NOT VERIFY" if facts.ledger.problem else "verified" if facts.ledger.summary else "none",
        "rounds finished": f"{len(run.rounds)} of {run.manifest.rounds}",
        "ended": run.result.stopped if run.result else "no result",
        "dropout": percent(facts.dropout),
        "noise that counts, over its target": span(facts.ratios, 3),
        "time of a round, mean": duration(sum(took) / len(took) if took else None),
        "bytes up, a client and round": size(sum(up) / len(up) if up else None),
    }


def rounds_csv(all_facts: Sequence[Facts]) -> str:
    """Return every finished round of all runs as CSV, with a column for each stage."""
    records = [record for facts in all_facts for record in facts.run.rounds]
    lost = dict.fromkeys(stage for record in records for stage in record.dropped)
    stages = dict.fromkeys(stage for record in records for stage in record.stages)
    costs = ("started", "seconds", "up", "down", "model_bytes", "replay_bytes")
    fields = ("number", "index", *costs, "wanted", "left", "charged", "epsilon", "clip", "invited")
    head = ["run", *fields, "clients", "survivors", "failures"]
    head += [f"dropped: {spaced(stage)}" for stage in lost] + [f"seconds: {spaced(stage)}" for stage in stages]
    rows: list[list[object]] = []
    for facts in all_facts:
        for record in facts.stated_rounds:
            row: list[object] = [facts.label, *(getattr(record, field) for field in fields), len(record.clients)]
            row += [min(record.survivors, default=0), len(record.failures)]
            row += [len(record.dropped.get(stage, ())) for stage in lost]
            rows.append(row + [record.stages.get(stage) for stage in stages])
    return _csv(head, rows)


def metrics_csv(all_facts: Sequence[Facts]) -> str:
    """Return everything that was measured as CSV, a line for each value."""
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
