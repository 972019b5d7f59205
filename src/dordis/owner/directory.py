"""The directory in which a client keeps its state: files that must survive a restart, and a cache of the last model.

`journals/` has the journal of the open round, `participations` the participation count, `trainings` the number of
trainings since the last counted participation, and `status.json` the outcome of the trainings.  `model` is the last
model that the client had.  `registry-*.json` has the newest registry of each authority.  `runs` lists the runs that the
client has accepted, and `receipts/` has the client's notes about its rounds and the receipts from the server.
"""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509

from dordis.durable_files import PRIVATE, AppendOnlyFile, write_atomically
from dordis.errors import InputError, ParametersRefused
from dordis.identity.certificates import fingerprint, subject_name, to_der
from dordis.identity.keys import certificate_file, read_certificates
from dordis.identity.registry import SignedRegistry, check_not_older
from dordis.owner.journal import FileJournals
from dordis.owner.participation import FileParticipation, FileTrainings
from dordis.owner.receipts import KeptReceipts
from dordis.records.run_records import timestamp
from dordis.rounds import model as models
from dordis.rounds.model import LastModel, ModelBytes

DAY = timedelta(days=1)


def default_state(key_file: Path) -> Path:
    """Return the default state directory of a client: beside the key file, under the name in the client's certificate.

    A client keeps its name when its keys are replaced, and so keeps this directory and its participation count.
    """
    certificate, _ = read_certificates(certificate_file(key_file))
    return key_file.with_name(f"{subject_name(certificate)}.state")


@dataclass(frozen=True)
class ClientDirectory:
    """The files of a client and its owner that survive a restart.

    After a restart, call `client.restore(round)` for each round id in `journals.unfinished()` to continue it.
    """

    path: Path

    def __post_init__(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def journals(self) -> FileJournals:
        return FileJournals(self.path / "journals")

    @property
    def models(self) -> "FileModel":
        return FileModel(self.path / "model")

    def participation(self, cap: int | None = None) -> FileParticipation:
        """Return the participation count, which refuses rounds beyond `cap`; None for no cap."""
        return FileParticipation(self.path / "participations", cap)

    @property
    def trainings(self) -> FileTrainings:
        return FileTrainings(self.path / "trainings")

    @property
    def status(self) -> "StatusFile":
        """Return the file with the outcome of the client's trainings."""
        return StatusFile(self.path / "status.json")

    @property
    def receipts(self) -> KeptReceipts:
        return KeptReceipts(self.path / "receipts")

    @property
    def runs(self) -> "AcceptedRuns":
        """Return the list, in a file, of the runs that the client has accepted."""
        return AcceptedRuns(self.path / "runs")

    def remember(self, registry: SignedRegistry, authority: x509.Certificate) -> None:
        """Store a registry, unless a newer registry of the same authority is stored already.

        Raise InputError if `registry` is older than the stored one and lists a member that the stored one revokes.
        """
        path = self.path / f"registry-{fingerprint(to_der(authority))}.json"
        newest = SignedRegistry.load(path, authority) if path.exists() else registry
        check_not_older(registry, newest)
        if registry.version >= newest.version:
            registry.save(path)


class FileModel(LastModel):
    """The last model in memory and in a file, so that a restarted client need not receive it again."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def get(self, digest: bytes) -> ModelBytes | None:
        return super().get(digest) or self._read(digest)

    def last(self) -> ModelBytes | None:
        return super().last() or self._read()

    def keep(self, model: ModelBytes) -> None:
        if super().get(model.digest) is None:
            write_atomically(self._path, model.dtype.encode() + b"\n" + model.data)
        super().keep(model)

    def _read(self, digest: bytes | None = None) -> ModelBytes | None:
        """Return the model in the file; None if the file is missing or damaged, or if a given `digest` differs."""
        if not self._path.exists():
            return None
        dtype, _, data = self._path.read_bytes().partition(b"\n")
        name = dtype.decode("ascii", "replace")
        found = models.digest(name, data)
        if name not in models.DTYPES or digest not in (None, found):
            return None
        super().keep(ModelBytes(name, data, found))
        return super().last()


class AcceptedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run that the client has accepted: a line of the file `runs`."""

    run: str
    """The run id in hex, which is the SHA-256 of the manifest."""
    created: str
    """The creation time in the manifest."""
    seen: datetime
    """When this client first saw the run."""


@dataclass(frozen=True)
class AcceptedRuns:
    """The runs that a client has accepted, with a bound on new runs per day.

    The run id decides in which rounds the client is selected.  Without the bound a server could start run after run,
    and continue only the run whose selection suits the server best.
    """

    path: Path

    def accept(self, run: bytes, created: str, now: datetime, runs_a_day: int) -> None:
        """Record a new run durably; raise ParametersRefused if `runs_a_day` runs were recorded in the last 24 hours.

        A run that is recorded already is always accepted.  `created` is the creation time in the run's manifest.  It is
        only recorded: the 24 hours are counted back from `now`.
        """
        with AppendOnlyFile(self.path, PRIVATE).locked() as file:
            data = file.read()
            complete = data[: data.rfind(b"\n") + 1]
            known = self._decode(complete)
            if any(one.run == run.hex() for one in known):
                return
            check_runs_a_day(known, now, runs_a_day)
            file.truncate(len(complete))
            file.append(msgspec.json.encode(AcceptedRun(run.hex(), created, now.astimezone(UTC))) + b"\n")

    def _decode(self, data: bytes) -> tuple[AcceptedRun, ...]:
        try:
            return tuple(msgspec.json.decode(line, type=AcceptedRun) for line in data.splitlines())
        except msgspec.DecodeError as error:
            raise InputError(f"{self.path} is not what dordis wrote: {error}; restore it from a backup") from None


def check_runs_a_day(known: tuple[AcceptedRun, ...], now: datetime, runs_a_day: int) -> None:
    """Raise ParametersRefused if the client has accepted `runs_a_day` new runs in the last 24 hours."""
    recent = [one for one in known if one.seen > now - DAY]
    if len(recent) >= runs_a_day:
        raise ParametersRefused(
            f"the server has begun another run, and this client has accepted {len(recent)} new runs since "
            f"{min(one.seen for one in recent):%Y-%m-%dT%H:%M:%SZ}: the server may be searching for a convenient "
            f"selection. If not, wait, or raise deployment.runs_a_day = {runs_a_day} in this client's configuration"
        )


class ClientStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a client's trainings, for its owner.

    >>> ClientStatus().describe()
    'status: no training is recorded here; with records as the unit of privacy none ever is'
    """

    last: str = ""
    """The last training: its application and its round."""
    zero_updates: int = 0
    """Number of updates that were zero because training or encoding failed, or because training was late."""
    failures: dict[str, int] = {}
    """Number of zero updates by kind of failure."""
    last_error: str = ""
    """Time of the last failure, in UTC."""
    server: str = ""
    """Address of the server that the client joined last."""
    epsilon: float | None = None
    """Epsilon of the owner's budget for all runs and servers, as of the client's last start; None without a budget."""
    delta: float | None = None
    last_contact: str = ""
    """Time of the last log-in or training, in UTC."""
    problem: str = ""
    """Why the client is not connected; empty if it is."""

    def after(self, what: str, failure: str, now: str) -> "ClientStatus":
        """Return the status after one more training, at the time `now`.

        `what` describes the training; if it is empty, `last` stays as it is.  `failure` is the kind of failure, empty
        if the training succeeded.
        """
        status = msgspec.structs.replace(self, last=what or self.last, last_contact=now)
        if not failure:
            return status
        counted = self.failures | {failure: self.failures.get(failure, 0) + 1}
        return msgspec.structs.replace(status, zero_updates=self.zero_updates + 1, failures=counted, last_error=now)

    def describe(self) -> str:
        """Return the status in one line."""
        if not self.last:
            return "status: no training is recorded here; with records as the unit of privacy none ever is"
        if not self.zero_updates:
            return f"status: no zero updates; the last was {self.last}"
        why = ", ".join(f"{count} {failure}" for failure, count in sorted(self.failures.items()))
        since = f"the last error at {self.last_error}; the last was {self.last}"
        return f"status: {self.zero_updates} zero updates ({why}), {since}"


_STATUS_LOCK = threading.Lock()
"""Held while the status is changed, because the application's thread and the network's thread both change it."""


@dataclass(frozen=True)
class StatusFile:
    """The status of a client in a file; if the file is missing or damaged, counts start at 0.

    The file is written after every training, failed or not, so that the time of the client's reply does not reveal a
    failure.  It contains no training data, and no messages of exceptions, which may quote training data.
    """

    path: Path

    def read(self) -> ClientStatus:
        """Return the status in the file; an empty status if the file is missing or damaged."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=ClientStatus)
        except (OSError, msgspec.DecodeError):
            return ClientStatus()

    def note(self, what: str, failure: str) -> None:
        """Record a training, described by `what`; `failure` says why the update is zero; empty if it is not."""
        self._change(lambda status: status.after(what, failure, timestamp()))

    def set_terms(self, server: str, budget: tuple[float, float] | None) -> None:
        """Record the address of the server, and the owner's budget (epsilon, delta); None if the owner has set none."""
        epsilon, delta = budget or (None, None)
        self._change(lambda status: msgspec.structs.replace(status, server=server, epsilon=epsilon, delta=delta))

    def note_event(self, problem: str) -> None:
        """Record that the client has logged in if `problem` is empty; otherwise record why it is not connected."""
        changes = {"problem": problem} if problem else {"problem": "", "last_contact": timestamp()}
        with contextlib.suppress(OSError):  # a client with a full disk should still reconnect
            self._change(lambda status: msgspec.structs.replace(status, **changes))

    def _change(self, change: Callable[[ClientStatus], ClientStatus]) -> None:
        with _STATUS_LOCK:
            write_atomically(self.path, msgspec.json.encode(change(self.read())) + b"\n", PRIVATE)
