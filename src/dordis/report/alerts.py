"""What a reader must not overlook in a run, worst first."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from dordis.privacy.accounting import delta_warnings
from dordis.privacy.mechanisms.mechanism import NoiseFrom
from dordis.report.facts import Facts
from dordis.report.numbers import count, number
from dordis.rounds.possible import IMPOSSIBLE, VACUOUS


class Level(Enum):
    """How bad it is."""

    BAD = "bad"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Alert:
    """Something that must be seen before any number is."""

    level: Level
    text: str


def alerts(facts: Facts) -> tuple[Alert, ...]:
    """Return what has to be said first about a run."""
    return (
        *(Alert(Level.BAD, text) for text in _bad(facts)),
        *(Alert(Level.WARNING, text) for text in _warnings(facts)),
        *(Alert(Level.NOTE, text) for text in _notes(facts)),
    )


def common_alerts(all_facts: Sequence[Facts]) -> tuple[Alert, ...]:
    """Return what has to be said first about several runs: everything once, with the runs of which it is true."""
    of: dict[Alert, list[str]] = {}
    for facts in all_facts:
        for alert in alerts(facts):
            if alert.level is not Level.NOTE:
                of.setdefault(alert, []).append(facts.label)
    order = list(Level)
    return tuple(
        Alert(alert.level, f"{'All runs' if len(whose) == len(all_facts) else '; '.join(whose)}: {alert.text}")
        for alert, whose in sorted(of.items(), key=lambda item: order.index(item[0].level))
    )


def _bad(facts: Facts) -> Iterator[str]:
    if facts.ledger.problem:
        yield f"The privacy ledger does not verify, and no epsilon can be stated: {facts.ledger.problem}"
    if facts.overspent:
        yield f"The budget is overspent: epsilon = {number(facts.spent)}, and the budget is {number(facts.budget)}."
    if facts.stated is not None and not math.isfinite(facts.stated):
        yield "No finite epsilon was recorded although noise was to be added: nothing is proved."
    if facts.exposure:
        nothing = " Against the server nothing is proved." if facts.trust.noise is NoiseFrom.CLIENTS else ""
        yield facts.exposure + nothing


def _warnings(facts: Facts) -> Iterator[str]:
    manifest = facts.run.manifest
    if not facts.trust.proves:
        yield f"This run proves nothing about privacy. {manifest.words.unproved}"
    else:
        yield from (f"{text[:1].upper()}{text[1:]}." for text in delta_warnings(manifest.plan.delta, manifest.clients))
    if facts.trust.noise is NoiseFrom.SERVER:
        yield f"The strategy '{manifest.noise}' trusts the server: epsilon does not hold against it."
    if facts.trust.simulated:
        ideal = " The protocol was not run; its result was computed, with the same noise."
        yield (
            f"Simulated {manifest.where}, which had everybody's data: what is stated is what a deployment like this "
            "would prove." + (ideal if manifest.fidelity == "ideal" else " Every message of the protocol was sent.")
        )
    if facts.trust.proves and facts.participations > manifest.plan.cap:
        yield (
            f"A client took part {count(facts.participations, 'time')}, and the plan covers {manifest.plan.cap}: "
            "what it spent is counted, but it is more than was planned for."
        )
    if facts.short_of_noise:
        least = min(facts.ratios)
        yield (
            f"In {facts.short_of_noise} of {count(len(facts.run.rounds), 'round')} less noise counted than was "
            f"planned: down to {number(least)} of its target."
        )


def _notes(facts: Facts) -> Iterator[str]:
    if facts.run.evicted:
        who = ", ".join(map(str, facts.run.evicted))
        yield (
            f"Evicted because somebody lied: clients {who}. At least half of them are liars, if there were no more "
            "liars than the colluders that are tolerated."
        )
    if spoilt := facts.run.sum_checks.get(IMPOSSIBLE):
        yield f"{count(spoilt, 'impossible sum')}: charged and not used."
    if facts.run.sum_checks.get(VACUOUS):
        yield "Sums of this run are too short to detect garbage in them: the check for impossible sums is vacuous."
    if not facts.run.rounds:
        yield "No round was finished."
    if facts.run.result is None:
        yield "The run has no result: it is under way, or was stopped. It can be resumed after its last finished round."
    elif facts.run.result.stopped != "rounds":
        yield f"The run ended early: {facts.stopped}."
