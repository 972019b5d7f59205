"""Alerts of a report: facts about a run that a reader must see first, the most severe first."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from dordis.privacy.accounting import budget_warnings
from dordis.privacy.mechanisms.mechanism import NoiseFrom
from dordis.report.facts import RunFacts
from dordis.report.numbers import format_count, format_number
from dordis.rounds.impossible_sums import IMPOSSIBLE, VACUOUS


class Level(Enum):
    """Severity of an alert."""

    BAD = "bad"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Alert:
    """A sentence at the top of a report, with its severity."""

    level: Level
    text: str


def find_alerts(facts: RunFacts) -> tuple[Alert, ...]:
    """Return the alerts of a run, the most severe first."""
    return (
        *(Alert(Level.BAD, text) for text in _bad(facts)),
        *(Alert(Level.WARNING, text) for text in _warnings(facts)),
        *(Alert(Level.NOTE, text) for text in _notes(facts)),
    )


def find_common_alerts(all_facts: Sequence[RunFacts]) -> tuple[Alert, ...]:
    """Return the alerts of several runs, without notes; equal alerts are merged, with the labels of their runs."""
    runs: dict[Alert, list[str]] = {}
    for facts in all_facts:
        for alert in find_alerts(facts):
            if alert.level is not Level.NOTE:
                runs.setdefault(alert, []).append(facts.label)
    order = list(Level)
    return tuple(
        Alert(alert.level, f"{'All runs' if len(whose) == len(all_facts) else '; '.join(whose)}: {alert.text}")
        for alert, whose in sorted(runs.items(), key=lambda item: order.index(item[0].level))
    )


def _bad(facts: RunFacts) -> Iterator[str]:
    if facts.ledger.problem:
        yield f"The privacy ledger does not verify, and no epsilon can be stated: {facts.ledger.problem}"
    if facts.is_overspent:
        spent, budget = format_number(facts.spent), format_number(facts.budget)
        yield f"The budget is overspent: {spent} is spent, and the budget is an epsilon of {budget}."
    if facts.reportable_epsilon is not None and not math.isfinite(facts.reportable_epsilon):
        yield "No finite epsilon was recorded although noise was to be added: nothing is proved."
    if facts.exposure:
        nothing = " Against the server nothing is proved." if facts.trust.noise is NoiseFrom.CLIENTS else ""
        yield facts.exposure + nothing


def _warnings(facts: RunFacts) -> Iterator[str]:
    manifest = facts.run.manifest
    if not facts.trust.proves:
        yield f"This run proves nothing about privacy. {manifest.words.unproved}"
    else:
        budget = manifest.plan.epsilon or 0.0, manifest.plan.delta, manifest.clients
        yield from (f"{text[:1].upper()}{text[1:]}." for text in budget_warnings(*budget))
    if facts.trust.noise is NoiseFrom.SERVER:
        yield f"The strategy '{manifest.noise}' trusts the server: epsilon does not hold against it."
    if facts.trust.simulated:
        ideal = " The protocol was not run; its result was computed, with the same noise."
        yield (
            f"Simulated {manifest.where}, which had everybody's data: what is stated is what a deployment like this "
            "would prove." + (ideal if manifest.fidelity == "ideal" else " Every message of the protocol was sent.")
        )
    if facts.trust.proves and facts.most_participations > manifest.plan.cap:
        yield (
            f"A client took part {format_count(facts.most_participations, 'time')}, and the plan covers "
            f"{manifest.plan.cap}: its epsilon is computed correctly, and is larger than planned."
        )
    if facts.rounds_short_of_noise:
        least = min(facts.noise_ratios)
        yield (
            f"In {facts.rounds_short_of_noise} of {format_count(len(facts.run.rounds), 'round')} the noise that "
            f"epsilon is based on was below its target: down to {format_number(least)} of it."
        )


def _notes(facts: RunFacts) -> Iterator[str]:
    if facts.run.evicted:
        who = ", ".join(map(str, facts.run.evicted))
        yield (
            f"Evicted because somebody lied: clients {who}. At least half of them are liars, if there were no more "
            "liars than the colluders that are tolerated."
        )
    if spoilt := facts.run.sum_checks.get(IMPOSSIBLE):
        yield f"{format_count(spoilt, 'impossible sum')}: charged and not used."
    if facts.run.sum_checks.get(VACUOUS):
        yield "Sums of this run are too short to detect garbage in them: the check for impossible sums is vacuous."
    if not facts.run.rounds:
        yield "No round was finished."
    if facts.run.result is None:
        yield "The run has no result: it is under way, or was stopped. It can be resumed after its last finished round."
    elif facts.run.result.stopped != "rounds":
        yield f"The run ended early: {facts.ending}."
