"""What a reader must not overlook in a run, worst first."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from dordis.report.facts import IDEAL, Facts, Trust
from dordis.report.numbers import count, number


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


def _bad(facts: Facts) -> Iterator[str]:
    if facts.ledger.problem:
        yield f"The privacy ledger does not verify, and no epsilon can be relied on: {facts.ledger.problem}"
    if facts.ledger_falls_short and facts.ledger.summary is not None:
        yield (
            f"The ledger accounts for epsilon = {number(facts.ledger.summary.epsilon)}, the records say "
            f"{number(facts.recorded)}: something is missing from the ledger."
        )
    if facts.overspent:
        yield f"The budget is overspent: epsilon = {number(facts.epsilon)}, and the budget is {number(facts.budget)}."
    if facts.trust is not Trust.NOTHING_PROVED and facts.run.rounds and not _is_finite(facts.epsilon):
        yield "No finite epsilon was recorded although noise was to be added: nothing is proved."
    if facts.trust is Trust.TOGETHER and not facts.hides_updates:
        yield "The protocol 'plaintext' shows every update to the server: against the server nothing is proved."


def _warnings(facts: Facts) -> Iterator[str]:
    manifest = facts.run.manifest
    if manifest.noise == "rebasing":
        yield "Rebasing is simulated for its cost only: no epsilon is proved for it."
    elif facts.trust is Trust.NOTHING_PROVED:
        yield "No noise was added: this run proves nothing about privacy."
    if facts.trust is Trust.SERVER:
        yield "The strategy 'central' trusts the server: epsilon does not hold against it."
    if facts.outsiders_only:
        yield "Epsilon holds against outsiders only: the server, who knows who takes part, is not covered."
    if manifest.fidelity == IDEAL:
        yield "Ideal fidelity: a simulation. The protocol was not run; its result was computed, with the same noise."
    elif facts.is_ideal:
        yield f"The fidelity '{manifest.fidelity}' is not known to this report: take the run for a simulation."
    if facts.trust is not Trust.NOTHING_PROVED and facts.participations > manifest.plan.cap:
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
    if not facts.run.rounds:
        yield "No round was finished."
    if facts.run.result is None:
        yield "The run has no result: it is under way, or was stopped. It can be resumed after its last finished round."
    elif facts.run.result.stopped != "rounds":
        yield f"The run ended early: {facts.stopped}."


def _is_finite(epsilon: float | None) -> bool:
    return epsilon is not None and math.isfinite(epsilon)
