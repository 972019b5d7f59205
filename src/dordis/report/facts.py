"""Facts about a run from its records: how it ended, epsilon spent, outcome of the ledger check, label, and alerts.

The *target* of a round's noise is the planned noise variance of the sum.  The *charged* noise variance is the part of
the variance left in the sum that counts for privacy.
"""

import math
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from dordis.errors import LedgerDamaged
from dordis.ledger.ledger import LedgerSummary
from dordis.ledger.stated_epsilon import StatedEpsilon
from dordis.ledger.verification import check_evidence
from dordis.privacy.accounting import budget_warnings
from dordis.privacy.mechanisms import NoiseFrom
from dordis.records import run_records
from dordis.records.manifest import Trust
from dordis.records.run_records import CONFIG, RoundRecord, StoredRun
from dordis.report.numbers import format_count, format_number
from dordis.rounds.impossible_sums import IMPOSSIBLE, VACUOUS

_CLOSE = 1e-9


@dataclass(frozen=True)
class LedgerCheck:
    """The outcome of verifying a run's ledger: its summary, or the problem; neither if the noise proves no epsilon."""

    summary: LedgerSummary | None = None
    problem: str = ""


@dataclass(frozen=True)
class RunFacts:
    """A run, its label in the report, and the outcome of verifying its ledger."""

    run: StoredRun
    label: str
    ledger: LedgerCheck

    @property
    def run_id(self) -> str:
        """Return the run id in hex."""
        return self.run.id.hex()

    @property
    def trust(self) -> Trust:
        """Return the facts about whom the clients of the run trust, such as who adds the noise."""
        return self.run.manifest.trust

    @property
    def exposure(self) -> str:
        """Return a warning if the protocol let the server see every update; otherwise empty."""
        if self.trust.hides_updates:
            return ""
        return f"The protocol '{self.run.manifest.protocol}' protects nobody: the server sees every update."

    @property
    def budget(self) -> float | None:
        """Return the epsilon that the run was planned for; None if it has no budget."""
        return self.run.manifest.budget

    @property
    def stated_epsilon(self) -> StatedEpsilon | None:
        """Return the epsilon that may be published, and the reason for this value (`ledger.stated_epsilon`).

        None if the noise proves no epsilon, or if the ledger does not verify.
        """
        return None if self.ledger.summary is None else self.ledger.summary.stated

    @property
    def reportable_epsilon(self) -> float | None:
        """Return the stated epsilon as a number; None if no epsilon is proved or the ledger does not verify."""
        return None if self.stated_epsilon is None else self.stated_epsilon.epsilon

    @property
    def spent(self) -> float | None:
        """Return the largest epsilon spent by a client; None if no epsilon is proved or the ledger does not verify."""
        return None if self.stated_epsilon is None else self.stated_epsilon.spent

    @property
    def reportable_rounds(self) -> tuple[RoundRecord, ...]:
        """Return the records of the rounds, without their epsilon if the run has no stated epsilon."""
        if self.stated_epsilon is not None:
            return self.run.rounds
        return tuple(msgspec.structs.replace(record, epsilon=None) for record in self.run.rounds)

    @property
    def is_overspent(self) -> bool:
        """Tell whether more than the budget was spent."""
        return self.spent is not None and self.budget is not None and self.spent > self.budget * (1 + _CLOSE)

    @property
    def ending(self) -> str:
        """Return in words how the run ended, and after how many rounds."""
        result, done, planned = self.run.result, self.run.finished, self.run.manifest.rounds
        if result is None:
            return f"no result yet: under way, or stopped, after {done} of {planned} rounds"
        words = {
            "rounds": f"finished, all {done} rounds",
            "budget": f"stopped at the budget, after {done} of {planned} rounds",
            "interrupted": f"interrupted after {done} of {planned} rounds",
        }
        return words.get(result.stopped, f"{result.stopped}, after {done} of {planned} rounds")

    @property
    def seconds(self) -> float:
        """Return the seconds that the finished rounds took."""
        return self.run.result.seconds if self.run.result else sum(record.seconds for record in self.run.rounds)

    @property
    def last_metrics(self) -> dict[str, float]:
        """Return the last value of each metric of the application."""
        measured = {name: value for line in self.run.metrics for name, value in line.values.items()}
        return measured | (self.run.result.metrics if self.run.result else {})

    @property
    def dropouts(self) -> tuple[int, ...]:
        """Return the number of dropouts of each round, at any stage."""
        return tuple(map(count_dropouts, self.run.rounds))

    @property
    def dropout_rate(self) -> float | None:
        """Return the share of a round's clients that dropped out, averaged over rounds; None without rounds."""
        parts = [count_dropouts(record) / len(record.clients) for record in self.run.rounds]
        return sum(parts) / len(parts) if parts else None

    @property
    def lost_before_upload(self) -> tuple[int, ...]:
        """Return for each round the number of clients lost before their upload, in the chunk that lost most."""
        return tuple(len(record.clients) - min(record.survivors, default=0) for record in self.run.rounds)

    @property
    def noise_ratios(self) -> tuple[float, ...]:
        """Return the `noise_ratio` of every round that has one."""
        return tuple(ratio for record in self.run.rounds if (ratio := self.noise_ratio(record)) is not None)

    def noise_ratio(self, record: RoundRecord) -> float | None:
        """Return the charged noise variance of a round divided by the planned variance sigma*^2; None without noise.

        Also None for the strategy `local`: the noise of one client is charged, but the noise of all clients together
        is planned.
        """
        if self.trust.noise is NoiseFrom.CLIENT or record.charged is None or not record.wanted:
            return None
        return record.charged / record.wanted

    @property
    def rounds_short_of_noise(self) -> int:
        """Return how many rounds had less charged noise than planned; 0 unless clients add the noise together."""
        return sum(r < 1 - _CLOSE for r in self.noise_ratios) if self.trust.noise is NoiseFrom.CLIENTS else 0

    @property
    def most_participations(self) -> int:
        """Return the largest number of finished rounds in which one client took part."""
        return max(Counter(u for record in self.run.rounds for u in record.clients).values(), default=0)


def read_facts(paths: Sequence[Path]) -> tuple[RunFacts, ...]:
    """Return the facts of the runs in these directories, with verified ledgers and a unique label for each."""
    runs = [run_records.load_run(path) for path in paths]
    return tuple(RunFacts(run, label, check_ledger(run)) for run, label in zip(runs, label_runs(runs), strict=True))


def check_ledger(run: StoredRun) -> LedgerCheck:
    """Verify the ledger of a run, compare it with the run's other records, and return the outcome."""
    try:
        return LedgerCheck(check_evidence(run))
    except LedgerDamaged as error:
        return LedgerCheck(problem=str(error))


def count_dropouts(record: RoundRecord) -> int:
    """Return the number of dropouts of a round, at any stage."""
    return len(set().union(*record.dropped.values()))


def odds_factor(epsilon: float) -> float:
    """Return e^epsilon, the largest factor by which one client's data change the probability of a set of outcomes."""
    return math.exp(epsilon) if epsilon < 700 else math.inf


IGNORED = ("name", "output", "app.folder")
"""Settings that labels and comparisons leave out, because they do not influence the results of a run."""
MOST_IN_LABEL = 3
"""Largest number of settings in the label of a run; the comparison table lists all differing settings."""


def label_runs(runs: Sequence[StoredRun]) -> list[str]:
    """Give each run a unique label: its name, plus differing settings, plus its start time if needed."""
    names = [run.manifest.name for run in runs]
    if len(set(names)) == len(names):
        return names
    described = [_describe_settings(place, differing_settings(runs)) for place in range(len(runs))]
    if len(set(names)) > 1:
        described = [f"{name}, {text}" if text else name for name, text in zip(names, described, strict=True)]
    begun = [run.manifest.created[:19].replace("T", " ") for run in runs]
    known = [label or name for label, name in zip(described, names, strict=True)]
    timed = [f"{label}, {time}" if known.count(label) > 1 else label for label, time in zip(known, begun, strict=True)]
    return [f"{label} #{i + 1}" if timed.count(label) > 1 else label for i, label in enumerate(timed)]


def differing_settings(runs: Sequence[StoredRun]) -> dict[str, tuple[str, ...]]:
    """Return the settings that differ between runs: dotted key, and the values in all runs ("" where not set)."""
    found = [dict(flatten_settings(_configuration(run))) for run in runs]
    keys = [key for key in dict.fromkeys(key for settings in found for key in settings) if key not in IGNORED]
    values = {key: tuple(settings.get(key, "") for settings in found) for key in keys}
    return {key: texts for key, texts in values.items() if len(set(texts)) > 1}


def flatten_settings(settings: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Return nested settings as pairs of dotted key and value, both as text.

    >>> flatten_settings({"privacy": {"epsilon": 6.0, "noise": {"kind": "orig"}}})
    [('privacy.epsilon', '6'), ('privacy.noise.kind', 'orig')]
    """
    parts = []
    for name, value in settings.items():
        if isinstance(value, dict):
            parts += flatten_settings(value, f"{above}{name}.")
        else:
            parts.append((f"{above}{name}", f"{value:g}" if isinstance(value, float) else str(value)))
    return parts


def _configuration(run: StoredRun) -> dict[str, Any]:
    """Return the configuration of a run, or an empty one if it cannot be read."""
    try:
        return tomllib.loads((run.path / CONFIG).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


def _describe_settings(place: int, differing: Mapping[str, tuple[str, ...]]) -> str:
    """Return as text the settings in which run number `place` differs from at least half of the runs.

    At most MOST_IN_LABEL of these settings are named.
    """
    kinds = [key.removesuffix("kind") for key in differing if key.endswith(".kind")]
    parts = [
        _format_setting(key, values[place])
        for key, values in differing.items()
        if values[place] and 2 * values.count(values[place]) <= len(values)
        if key.endswith(".kind") or not any(key.startswith(kind) for kind in kinds)
    ]
    return ", ".join([*parts[:MOST_IN_LABEL], *(["..."] if len(parts) > MOST_IN_LABEL else [])])


def _format_setting(key: str, value: str) -> str:
    """Return a setting as text: the last part of its key other than `kind`, and its value without a module.

    >>> _format_setting("privacy.noise.kind", "orig"), _format_setting("app.server", "my.module:Server")
    ('noise orig', 'server Server')
    """
    return f"{key.removesuffix('.kind').rpartition('.')[2].replace('_', ' ')} {value.rpartition(':')[2]}"


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
    """Return the alerts of several runs, except notes; equal alerts become one, which names the labels of its runs."""
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
