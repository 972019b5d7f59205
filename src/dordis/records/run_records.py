"""The records of a run: one directory with everything that a report, a resumed run or a regulator needs.

A round is finished when its checkpoint is written: the application's state, such as the model, and the lines about the
round.  The checkpoint replaces the previous one in one step.  Then the lines are appended to other files.  So a run
stopped at any moment can resume after its last finished round.
"""

import hashlib
import io
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.durable_files import (
    PUBLIC,
    AppendOnlyFile,
    read_lines_with_last,
    remove_drafts,
    repair_lines,
    write_atomically,
)
from dordis.errors import InputError, explain_os_errors
from dordis.privacy.projection import Alignment
from dordis.protocol import ClientId
from dordis.records.manifest import Manifest, check_name, encode_manifest
from dordis.rounds.impossible_sums import IMPOSSIBLE, NOT_CHECKED

CONFIG, MANIFEST, ROUNDS, METRICS = "config.toml", "manifest.json", "rounds.jsonl", "metrics.jsonl"
LEDGER, MODEL, RESULT, RECEIPTS = "ledger.jsonl", "model.npz", "result.json", "receipts"
EVICTIONS, REGISTRY, FAILURES = "evictions.jsonl", "registry.json", "failures.jsonl"
_LINES = "lines"

State = Mapping[str, npt.NDArray[Any]]
Lines = dict[str, bytes]
"""The lines about one round, by the name of the file to which each is appended."""
Kind = TypeVar("Kind")


class FailedAttempt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A failed try of a round: a line of `failures.jsonl`.

    The round is tried again under the next index, unless its tries are used up.  If the process that recorded this try
    also finished the round, the failed try is in the round's record too.
    """

    index: int
    reason: str
    evicted: tuple[int, ...] = ()
    """Clients evicted because of this attempt."""
    survivors: tuple[int, ...] = ()
    """The clients in an impossible sum: one of them, or the server, caused it.  Empty for other failures."""


class Eviction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Clients that were excluded from the rest of a run after the round `index`, and why: a line of `evictions.jsonl`.

    `run` is the id of the earlier run that evicted them, in hex; empty for the run of this file.
    """

    index: int
    clients: tuple[int, ...]
    reason: str
    run: str = ""


class RoundRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A finished round: a line of `rounds.jsonl`."""

    number: int
    """The number of this round among the finished rounds, from 1."""
    index: int
    """The round's index in its run; failed attempts use up indices too."""
    started: str
    seconds: float
    """Seconds from the round's start until it was evaluated, or until the next round began if that was earlier."""
    stages: dict[str, float]
    """Seconds of every stage, in order; stages of several chunks may overlap."""
    clients: tuple[int, ...]
    survivors: tuple[int, ...]
    """Number of survivors, the clients in the sum, of each chunk."""
    dropped: dict[str, tuple[int, ...]]
    """Clients that dropped out, by the first request that they did not answer."""
    up: int | None
    """Bytes from all clients; None if no messages were sent."""
    down: int | None
    wanted: float | None
    """The noise variance from which epsilon was planned, sigma*^2, in squared integer units; None without noise."""
    left: float | None
    """Variance of the noise left in the sum of the chunk with the least `charged`."""
    charged: float | None
    """Variance of the noise that counts for privacy, the least over the chunks."""
    epsilon: float | None
    """Largest epsilon spent by a client so far; None if no epsilon is proved."""
    failures: tuple[FailedAttempt, ...] = ()
    invited: int | None = None
    """Number of invited clients; invited clients that were not ready in time are not in `clients`."""
    model_bytes: int | None = None
    """The bytes in `down` that were the model; None if no messages were sent."""
    replay_bytes: int | None = None
    """The bytes in `down` that were the sums of missed rounds, sent instead of the model."""
    dim: int | None = None
    """Number of coordinates of an update."""
    buckets: int = 0
    """Coordinates into which an update was folded; 0 without folding."""
    alignment: Alignment | None = None
    """Estimated alignment of the updates of the rounds so far; None unless folding adapts to it."""
    clip: float | None = None
    """The clip bound; None if nothing is clipped."""
    below: float | None = None
    """Noisy estimate of the fraction of updates with a norm below the clip bound; None if the bound is fixed."""
    evicted: tuple[int, ...] = ()
    """Clients evicted after this round because they lied in it; the sum is right nevertheless."""
    sum_check: str = NOT_CHECKED
    """Outcome of the check for impossible sums: `passed`, `vacuous` if uniform numbers would pass too, or
    `not checked`."""


class RoundMetrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The application's metrics after a round: a line of `metrics.jsonl`."""

    number: int
    values: dict[str, float]


class RunOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a run.

    `stopped` is the reason: "rounds" (all are finished), "budget" (used up), "failed" or "interrupted".  `epsilon` is
    the stated epsilon (`ledger.stated_epsilon`), `spent` the largest epsilon spent by a client.
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
    """All records of a run, read from its directory."""

    path: Path
    id: bytes
    """The run id: the hash of the manifest."""
    manifest: Manifest
    rounds: tuple[RoundRecord, ...]
    metrics: tuple[RoundMetrics, ...]
    result: RunOutcome | None
    evictions: tuple[Eviction, ...] = ()
    """Evictions of this run and its predecessors."""
    last: RoundRecord | None = None
    """The record of the round after which the checkpoint was written."""
    failures: tuple[FailedAttempt, ...] = ()
    """Failed attempts in the order of their indices, also of rounds that were finished later."""

    @property
    def evicted(self) -> tuple[int, ...]:
        return tuple(sorted(u for line in self.evictions for u in line.clients))

    @property
    def finished(self) -> int:
        """Return the number of recorded rounds of this run and its predecessors."""
        return self.manifest.before + len(self.rounds)

    @property
    def evident(self) -> int:
        """Return the number of recorded rounds that the checkpoint confirms, predecessors' rounds included."""
        return self.manifest.before if self.last is None else min(self.finished, self.last.number)

    @property
    def sum_checks(self) -> dict[str, int]:
        """Return how often each outcome of the check for impossible sums occurred, failed tries of rounds included."""
        outcomes = Counter(record.sum_check for record in self.rounds)
        outcomes[IMPOSSIBLE] += sum(bool(failed.survivors) for failed in self.failures)
        return {outcome: count for outcome, count in outcomes.items() if count}


class RunRecords:
    """The directory of a run under way; `id` is the run id."""

    def __init__(self, path: Path, manifest: Manifest, run_id: bytes) -> None:
        self.path, self.manifest, self.id = path, manifest, run_id

    @classmethod
    def create(cls, root: Path, manifest: Manifest, config: str) -> "RunRecords":
        """Create the directory `root/<name>/<utc>` with the configuration and the manifest."""
        check_name(manifest.name)
        path = root / manifest.name / manifest.created.replace(":", "").replace("-", "")
        with explain_os_errors(f"make the directory {path} for the run"):
            path.mkdir(parents=True)
        write_atomically(path / CONFIG, config.encode())
        data = encode_manifest(manifest)
        write_atomically(path / MANIFEST, data)
        return cls(path, manifest, hashlib.sha256(data).digest())

    @classmethod
    def open(cls, path: Path) -> "RunRecords":
        """Open the directory of a run to resume it, and repair files that a stopped process left incomplete."""
        data = _read(path / MANIFEST)
        records = cls(path, _decode(data, Manifest, path / MANIFEST), hashlib.sha256(data).digest())
        lines = read_checkpoint_lines(path / MODEL)
        for name in (ROUNDS, METRICS, FAILURES):
            repair_lines(path / name, lines.get(name, b""))
        remove_drafts(path / MODEL)
        return records

    def begin(self, state: State) -> None:
        """Write `state`, the application's state with which this run begins as the successor of another run."""
        write_checkpoint(self.path / MODEL, {}, state)

    def finish(self, record: RoundRecord, metrics: RoundMetrics, state: State) -> None:
        """Record a finished round durably: first the checkpoint, then lines in rounds.jsonl and metrics.jsonl."""
        lines = {ROUNDS: _encode_line(record), METRICS: _encode_line(metrics)}
        write_checkpoint(self.path / MODEL, lines, state)
        for name, line in lines.items():
            _append(self.path / name, line)

    def note_failure(self, failed: FailedAttempt) -> None:
        """Record a failed try of a round durably, in failures.jsonl; the record of the round may repeat this try."""
        _append(self.path / FAILURES, _encode_line(failed))

    def failures(self) -> tuple[FailedAttempt, ...]:
        """Return the recorded failed tries of rounds."""
        return tuple(_read_lines(self.path / FAILURES, FailedAttempt, read_checkpoint_lines(self.path / MODEL)))

    def state(self) -> State:
        """Return the application's state after the last finished round; empty if there is none."""
        return read_state(self.path / MODEL)

    def last(self) -> RoundRecord | None:
        """Return the record of the last finished round; None if there is none."""
        return _last_record(read_checkpoint_lines(self.path / MODEL), self.path)

    def reopen(self) -> None:
        """Remove the stored outcome of a resumed run, which has not ended; the epsilon spent is in the ledger."""
        (self.path / RESULT).unlink(missing_ok=True)

    def close(self, result: RunOutcome) -> None:
        """Record the outcome of the run."""
        write_atomically(self.path / RESULT, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


class Evictions:
    """The evicted clients, who may not take part in the rest of a run: in a file, or in memory if `path` is None."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.lines: tuple[Eviction, ...] = () if path is None else read_evictions(path)

    @property
    def clients(self) -> frozenset[ClientId]:
        """Return all evicted clients."""
        return frozenset(ClientId(u) for line in self.lines for u in line.clients)

    def after(self, index: int) -> tuple[int, ...]:
        """Return the clients evicted directly after round `index` of this run, neither later nor by an earlier run."""
        return tuple(u for line in self.lines if line.index == index and not line.run for u in line.clients)

    def add(self, index: int, clients: Collection[ClientId], reason: str, run: str = "") -> tuple[ClientId, ...]:
        """Evict clients after round `index`, on disk if there is a file; return the new ones (see `Eviction`)."""
        fresh = tuple(sorted(set(clients) - self.clients))
        if fresh:
            line = Eviction(index, fresh, reason, run)
            if self._path is not None:
                _append(self._path, _encode_line(line))
            self.lines += (line,)
        return fresh

    def inherit(self, lines: Iterable[Eviction], run: str) -> None:
        """Evict the clients in `lines`, which an earlier run with the id `run`, or a predecessor of it, evicted."""
        for line in lines:
            self.add(line.index, [ClientId(u) for u in line.clients], line.reason, line.run or run)


def load_run(path: Path) -> StoredRun:
    """Read all records of a run, finished or running; raise InputError if a file is damaged. Nothing is written."""
    result, manifest = path / RESULT, _read(path / MANIFEST)
    lines = read_checkpoint_lines(path / MODEL)  # read first: these lines are in the other files, or will be
    rounds = _read_lines(path / ROUNDS, RoundRecord, lines)
    failed = _read_lines(path / FAILURES, FailedAttempt, lines)
    failed = (*failed, *(attempt for record in rounds for attempt in record.failures))
    run = StoredRun(
        path=path,
        id=hashlib.sha256(manifest).digest(),
        manifest=_decode(manifest, Manifest, path / MANIFEST),
        rounds=rounds,
        metrics=_read_lines(path / METRICS, RoundMetrics, lines),
        result=_decode(_read(result), RunOutcome, result) if result.exists() else None,
        evictions=read_evictions(path / EVICTIONS),
        last=_last_record(lines, path),
        failures=tuple(sorted(set(failed), key=lambda attempt: attempt.index)),
    )
    values = [line.values for line in run.metrics] + ([run.result.metrics] if run.result else [])
    for name in filter(is_reserved_metric, {name for metrics in values for name in metrics}):
        raise InputError(
            f"the run at {path} has a metric called '{name}', a name reserved for the ledger: restore its metrics"
        )
    return run


def read_evictions(path: Path) -> tuple[Eviction, ...]:
    """Read the evictions of a run; none if there is no file."""
    return _read_lines(path, Eviction, {})


def timestamp() -> str:
    """Return the time in UTC, to the microsecond."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def is_reserved_metric(metric: str) -> bool:
    """Tell whether a metric name contains "epsilon", which is reserved: every epsilon on a page is the ledger's.

    >>> is_reserved_metric("accuracy"), is_reserved_metric("Epsilon, last")
    (False, True)
    """
    return "epsilon" in metric.lower()


def write_checkpoint(path: Path, lines: Mapping[str, bytes], state: State) -> None:
    """Replace the checkpoint durably by the application's state after a round, and the round's lines by file name."""
    write_atomically(path, encode_checkpoint(lines, state))


def encode_checkpoint(lines: Mapping[str, bytes], state: State) -> bytes:
    """Return the content of a checkpoint: a round's lines by file name, and the application's state after the round."""
    taken = sorted({_LINES, "file", "allow_pickle"} & state.keys())  # parameters of np.savez
    if taken:
        raise InputError(f"an application's state has no entry named '{taken[0]}': choose another name")
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **{_LINES: np.frombuffer(msgspec.json.encode(lines), np.uint8), **state})
    return archive.getvalue()


def read_state(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the application's state in a checkpoint; empty if there is no checkpoint."""
    return _read_checkpoint(path, lambda stored: {name: stored[name] for name in stored if name != _LINES})


def read_checkpoint_lines(path: Path) -> Lines:
    """Return the lines about the last finished round, by the name of their file; empty if there is no checkpoint."""
    return _read_checkpoint(
        path, lambda stored: msgspec.json.decode(stored[_LINES].tobytes(), type=Lines) if stored else {}
    )


def _read_checkpoint(path: Path, extract: Callable[[State], Kind]) -> Kind:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return extract(stored)
    except FileNotFoundError:
        return extract({})
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, msgspec.DecodeError) as error:
        raise InputError(f"the checkpoint {path} cannot be read: {error}; restore it, or start a new run") from None


def _encode_line(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def _append(path: Path, line: bytes) -> None:
    with AppendOnlyFile(path, PUBLIC).locked() as file:
        file.append(line)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        raise InputError(f"there is no run at {path.parent}: it has no {path.name}") from None


def _decode(data: bytes, kind: type[Kind], path: Path) -> Kind:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not what dordis wrote: {error}") from None


def _read_lines(path: Path, kind: type[Kind], last: Lines) -> tuple[Kind, ...]:
    return tuple(_decode(line, kind, path) for line in read_lines_with_last(path, last.get(path.name, b"")))


def _last_record(lines: Lines, path: Path) -> RoundRecord | None:
    return _decode(lines[ROUNDS], RoundRecord, path / MODEL) if lines else None
