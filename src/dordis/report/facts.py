"""What follows from the records of a run: how it ended, what it spent, and whether its ledger bears that out."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dordis.errors import LedgerDamaged
from dordis.federation import records
from dordis.federation.evidence import check_evidence
from dordis.federation.ledger import Summary
from dordis.federation.manifest import Trust
from dordis.federation.records import RoundRecord, StoredRun
from dordis.federation.stated import StatedEpsilon
from dordis.privacy.mechanisms.mechanism import NoiseFrom
from dordis.report.naming import labels

_CLOSE = 1e-9


@dataclass(frozen=True)
class Checked:
    """What became of the check of a ledger: a summary, or what is wrong, or neither where there is no ledger."""

    summary: Summary | None = None
    problem: str = ""


@dataclass(frozen=True)
class Facts:
    """A run under the name it has in the report, and what its ledger says."""

    run: StoredRun
    label: str
    ledger: Checked

    @property
    def run_id(self) -> str:
        """Return the run id in hex."""
        return self.run.id.hex()

    @property
    def trust(self) -> Trust:
        """Return who is trusted with what."""
        return self.run.manifest.trust

    @property
    def exposure(self) -> str:
        """Say that the server saw every update, if it did."""
        if self.trust.hides_updates:
            return ""
        return f"The protocol '{self.run.manifest.protocol}' protects nobody: the server sees every update."

    @property
    def budget(self) -> float | None:
        """Return the epsilon that the run was planned for."""
        return self.run.manifest.budget

    @property
    def proof(self) -> StatedEpsilon | None:
        """Return the stated epsilon and its basis (`federation.stated`).

        None where nothing is proved, or where the ledger cannot be relied on, whatever was written down elsewhere.
        """
        return None if self.ledger.summary is None else self.ledger.summary.stated

    @property
    def stated(self) -> float | None:
        """Return the stated epsilon of the run."""
        return None if self.proof is None else self.proof.epsilon

    @property
    def spent(self) -> float | None:
        """Return the largest epsilon spent by a client, from the ledger."""
        return None if self.proof is None else self.proof.spent

    @property
    def stated_rounds(self) -> tuple[RoundRecord, ...]:
        """Return the records of the rounds, without what they say of epsilon where none can be stated."""
        if self.proof is not None:
            return self.run.rounds
        return tuple(msgspec.structs.replace(record, epsilon=None) for record in self.run.rounds)

    @property
    def overspent(self) -> bool:
        """Tell whether more than the budget was spent."""
        return self.spent is not None and self.budget is not None and self.spent > self.budget * (1 + _CLOSE)

    @property
    def done(self) -> int:
        """Return how many rounds are finished, in this run and in those that it goes on from."""
        return self.run.finished

    @property
    def stopped(self) -> str:
        """Say how the run ended."""
        result, done, planned = self.run.result, self.done, self.run.manifest.rounds
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
        """Return how long the finished rounds took."""
        return self.run.result.seconds if self.run.result else sum(record.seconds for record in self.run.rounds)

    @property
    def last_metrics(self) -> dict[str, float]:
        """Return the last value of everything the application measured."""
        measured = {name: value for line in self.run.metrics for name, value in line.values.items()}
        return measured | (self.run.result.metrics if self.run.result else {})

    @property
    def dropped(self) -> tuple[int, ...]:
        """Return how many clients stopped answering, at whichever stage, in each round."""
        return tuple(map(gone, self.run.rounds))

    @property
    def dropout(self) -> float | None:
        """Return which part of a round's clients stopped answering, on average."""
        parts = [gone(record) / len(record.clients) for record in self.run.rounds]
        return sum(parts) / len(parts) if parts else None

    @property
    def lost(self) -> tuple[int, ...]:
        """Return |D| of each round, who were lost before their upload: the most over its chunks."""
        return tuple(len(record.clients) - min(record.survivors, default=0) for record in self.run.rounds)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Return, of every round with noise, the noise that privacy counts on over that which was wanted.

        There is none where every client counts on its own alone: what is wanted is that of all.
        """
        return tuple(ratio for record in self.run.rounds if (ratio := self.ratio(record)) is not None)

    def ratio(self, record: RoundRecord) -> float | None:
        """Return that of one round."""
        if self.trust.noise is NoiseFrom.CLIENT or record.charged is None or not record.wanted:
            return None
        return record.charged / record.wanted

    @property
    def short_of_noise(self) -> int:
        """Return in how many rounds the clients' noise was below its target."""
        return sum(r < 1 - _CLOSE for r in self.ratios) if self.trust.noise is NoiseFrom.CLIENTS else 0

    @property
    def participations(self) -> int:
        """Return how often the most frequent client was in a finished round."""
        return max(Counter(u for record in self.run.rounds for u in record.clients).values(), default=0)


def gather(paths: Sequence[Path]) -> tuple[Facts, ...]:
    """Read runs, check their ledgers, and give each run a name of its own."""
    runs = [records.load(path) for path in paths]
    return tuple(Facts(run, label, checked(run)) for run, label in zip(runs, labels(runs), strict=True))


def checked(run: StoredRun) -> Checked:
    """Recompute the ledger of a run, and compare it with the rest of the run's directory."""
    try:
        return Checked(check_evidence(run))
    except LedgerDamaged as error:
        return Checked(problem=str(error))


def gone(record: RoundRecord) -> int:
    """Return how many clients stopped answering in a round, at whichever stage."""
    return len(set().union(*record.dropped.values()))


def odds(epsilon: float) -> float:
    """Return the factor e^epsilon."""
    return math.exp(epsilon) if epsilon < 700 else math.inf
