"""The records of a run: one directory with everything that a report, a resumed run or a regulator needs.

A round is finished when its checkpoint is: that file replaces the one before in one step and holds the round's line
too, so that a process stopped anywhere leaves a run that goes on after its last finished round.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from dordis.errors import InputError
from dordis.federation import checkpoint
from dordis.federation.checkpoint import State
from dordis.federation.durable import PUBLIC, FileLines, mend_lines, mended_lines, remove_drafts, replace
from dordis.federation.evictions import Eviction, read_evictions
from dordis.federation.manifest import Manifest, encode_manifest
from dordis.federation.metric_names import check_metric_names
from dordis.privacy.projection import Alignment
from dordis.rounds.possible import IMPOSSIBLE, NOT_CHECKED

Kind = TypeVar("Kind")

CONFIG, MANIFEST, ROUNDS, METRICS = "config.toml", "manifest.json", "rounds.jsonl", "metrics.jsonl"
LEDGER, MODEL, RESULT, RECEIPTS = "ledger.jsonl", "model.npz", "result.json", "receipts"
EVICTIONS, REGISTRY, FAILURES = "evictions.jsonl", "registry.json", "failures.jsonl"


class Failed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An attempt that failed; the round was tried again under the next index, if it had tries left.

    It is a line of `failures.jsonl` at once, and in the line of its round if that was finished in the same process.
    """

    index: int
    reason: str
    evicted: tuple[int, ...] = ()
    """Who had to go for that, for the rest of the run."""
    survivors: tuple[int, ...] = ()
    """U3 of an impossible sum: somebody among them spoilt it, or the server did."""


class RoundRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happened in a finished round: a line of `rounds.jsonl`."""

    number: int
    """Counts finished rounds, from 1."""
    index: int
    """The round's index in its run; failed attempts use up indices too."""
    started: str
    seconds: float
    stages: dict[str, float]
    """Seconds of every stage, in order; stages of several chunks may overlap."""
    clients: tuple[int, ...]
    survivors: tuple[int, ...]
    """|U3| of each chunk."""
    dropped: dict[str, tuple[int, ...]]
    """Who stopped answering, by the first request that was not answered."""
    up: int | None
    """Bytes from all clients; None where no message was sent."""
    down: int | None
    wanted: float | None
    """Central variance that was planned, sigma*^2, in squared integer units; None without noise."""
    left: float | None
    """Variance of the noise in the sum: the least over the chunks, like the next one."""
    charged: float | None
    """Variance that privacy may count on."""
    epsilon: float | None
    """What the client that has spent most has spent so far; None where nothing is proved."""
    failures: tuple[Failed, ...] = ()
    invited: int | None = None
    """Clients that were asked; those who were not ready in time are not in `clients`."""
    model_bytes: int | None = None
    """Of the bytes to the clients, those of the model; None where no message was sent."""
    replay_bytes: int | None = None
    """And those of sums that clients had missed, sent in place of the model."""
    dim: int | None = None
    """Length of an update; None where an older version did not write it down."""
    buckets: int = 0
    """Coordinates into which it was folded; 0: it was not."""
    alignment: Alignment | None = None
    """How far updates agree, as estimated so far, where folding adapts to it."""
    clip: float | None = None
    """The clip bound; None where nothing is clipped."""
    below: float | None = None
    """Fraction of the norms that were below it, with noise; None where that was not counted."""
    evicted: tuple[int, ...] = ()
    """Who lied in a way that the round survived, and is in none of the next."""
    sum_check: str = NOT_CHECKED
    """Whether the sum was compared with what honest updates and noise can make: `passed`, `vacuous` if uniform numbers
    would have passed as well, or `not checked`."""


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the application measured after a round: a line of `metrics.jsonl`."""

    number: int
    values: dict[str, float]


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the run ended; `stopped` says why: `rounds` (all done), `budget`, `failed` (a round did) or `interrupted`.

    `epsilon` is what is stated (`federation.stated`), `spent` what the client that has spent most has spent.
    """

    stopped: str
    rounds: int
    seconds: float
    epsilon: float | None
    delta: float
    fidelity: str
    metrics: dict[str, float]
    spent: float | None = None


@dataclass(frozen=True)
class StoredRun:
    """Everything that was recorded of a run, read back."""

    path: Path
    id: bytes
    """The run id: the hash of the manifest."""
    manifest: Manifest
    rounds: tuple[RoundRecord, ...]
    metrics: tuple[Metrics, ...]
    result: Result | None
    evictions: tuple[Eviction, ...] = ()
    """Who had to go, in this run and in those that it goes on from."""
    last: RoundRecord | None = None
    """The round after which the model was kept."""
    failures: tuple[Failed, ...] = ()
    """Attempts that failed, by their index, whether their round was finished in the end or not."""

    @property
    def evicted(self) -> tuple[int, ...]:
        """Return the clients that had to go."""
        return tuple(sorted(u for line in self.evictions for u in line.clients))

    @property
    def finished(self) -> int:
        """Return how many rounds are recorded as finished, in this run and in those before."""
        return self.manifest.before + len(self.rounds)

    @property
    def evident(self) -> int:
        """Return how many of them are evident: the model was kept after the last one."""
        return self.manifest.before if self.last is None else min(self.finished, self.last.number)

    @property
    def sum_checks(self) -> dict[str, int]:
        """Return how many sums had which outcome of the check for impossible ones, failed rounds included."""
        outcomes = Counter(record.sum_check for record in self.rounds)
        outcomes[IMPOSSIBLE] += sum(bool(failed.survivors) for failed in self.failures)
        return {outcome: count for outcome, count in outcomes.items() if count}


class Records:
    """The directory of one run, while it runs; `id` is the run id."""

    def __init__(self, path: Path, manifest: Manifest, run_id: bytes) -> None:
        self.path, self.manifest, self.id = path, manifest, run_id

    @classmethod
    def create(cls, root: Path, manifest: Manifest, config: str) -> "Records":
        """Make the directory `root/<name>/<utc>` with the configuration and the manifest in it."""
        check_name(manifest.name)
        stamp = manifest.created.replace(":", "").replace("-", "")
        path = root / manifest.name / stamp
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"cannot make the directory {path} for the run: {error.strerror}") from None
        replace(path / CONFIG, config.encode())
        data = encode_manifest(manifest)
        replace(path / MANIFEST, data)
        return cls(path, manifest, hashlib.sha256(data).digest())

    @classmethod
    def open(cls, path: Path) -> "Records":
        """Go on with a run that was begun: mend what a stop in the middle of writing may have left."""
        data = _read(path / MANIFEST)
        records = cls(path, _decode(data, Manifest, path / MANIFEST), hashlib.sha256(data).digest())
        lines = checkpoint.read_lines(path / MODEL)
        for name in (ROUNDS, METRICS, FAILURES):
            mend_lines(path / name, lines.get(name, b""))
        remove_drafts(path / MODEL)
        return records

    def begin(self, state: State) -> None:
        """Write down the state that a successor run begins with."""
        checkpoint.write(self.path / MODEL, {}, state)

    def finish(self, record: RoundRecord, metrics: Metrics, state: State) -> None:
        """Write a finished round down, durably when this returns: checkpoint first, then the lines."""
        lines = {ROUNDS: _line(record), METRICS: _line(metrics)}
        checkpoint.write(self.path / MODEL, lines, state)
        for name, line in lines.items():
            with FileLines(self.path / name, PUBLIC).locked() as file:
                file.append(line)

    def note_failure(self, failed: Failed) -> None:
        """Write a failed attempt down, durably when this returns: a round that never succeeds has no other line."""
        with FileLines(self.path / FAILURES, PUBLIC).locked() as file:
            file.append(_line(failed))

    def state(self) -> State:
        """Return the application's state after the last finished round, or nothing."""
        return checkpoint.read_state(self.path / MODEL)

    def last(self) -> RoundRecord | None:
        """Return the record of the last finished round."""
        return _last_of(checkpoint.read_lines(self.path / MODEL), self.path)

    def reopen(self) -> None:
        """Take back how the run ended: until it ends again, what it has spent is in the ledger alone."""
        (self.path / RESULT).unlink(missing_ok=True)

    def close(self, result: Result) -> None:
        """Write down how the run ended."""
        replace(self.path / RESULT, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def load(path: Path) -> StoredRun:
    """Read everything that was recorded of a run, in which rounds may be under way; nothing is written."""
    result, manifest = path / RESULT, _read(path / MANIFEST)
    lines = checkpoint.read_lines(path / MODEL)  # first: what is in it is, or will be, in the files of lines
    rounds = _lines(path / ROUNDS, RoundRecord, lines)
    failed = (*_lines(path / FAILURES, Failed, lines), *(failed for record in rounds for failed in record.failures))
    run = StoredRun(
        path=path,
        id=hashlib.sha256(manifest).digest(),
        manifest=_decode(manifest, Manifest, path / MANIFEST),
        rounds=rounds,
        metrics=_lines(path / METRICS, Metrics, lines),
        result=_decode(_read(result), Result, result) if result.exists() else None,
        evictions=read_evictions(path / EVICTIONS),
        last=_last_of(lines, path),
        failures=tuple(sorted(set(failed), key=lambda attempt: attempt.index)),
    )
    told = [line.values for line in run.metrics] + ([run.result.metrics] if run.result else [])
    check_metric_names({name for values in told for name in values}, path)
    return run


def timestamp() -> str:
    """Return the time in UTC, to the microsecond."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def check_name(name: str) -> None:
    """A run's name is the name of a directory."""
    if not name or name.startswith(".") or any(not (c.isalnum() or c in "._-") for c in name):
        raise InputError(f"a run's name is made of letters, digits and . _ -, not '{name}'")


def _line(record: RoundRecord | Metrics | Failed) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        raise InputError(f"there is no run at {path.parent}: it has no {path.name}") from None


def _decode(data: bytes, kind: type[Kind], path: Path) -> Kind:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not what dordis wrote: {error}") from None


def _lines(path: Path, kind: type[Kind], last: checkpoint.Lines) -> tuple[Kind, ...]:
    return tuple(_decode(line, kind, path) for line in mended_lines(path, last.get(path.name, b"")))


def _last_of(lines: checkpoint.Lines, path: Path) -> RoundRecord | None:
    return _decode(lines[ROUNDS], RoundRecord, path / MODEL) if lines else None
