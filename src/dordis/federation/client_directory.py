"""The directory of a client: what it must not lose when it is stopped, and what saves it work.

`journals/` keeps the round under way, `participations` the count of all rounds, `trainings` the training count since
the last counted round, `status.json` the outcome of trainings, `model` the last model, `registry-*.json` the newest
registry of every authority, and `runs` the accepted runs.
"""

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from dordis.federation.certificates import fingerprint, to_der
from dordis.federation.client_status import StatusFile
from dordis.federation.durable import replace
from dordis.federation.journal import FileJournals
from dordis.federation.known_runs import KnownRuns
from dordis.federation.membership import SignedRegistry, check_not_older
from dordis.federation.participation import FileParticipation
from dordis.federation.trainings import FileTrainings
from dordis.rounds import model as models
from dordis.rounds.model import LastModel, ModelBytes


class FileModel(LastModel):
    """Keep the last model in a file, too: a client that was restarted need not be sent it again."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def get(self, digest: bytes) -> ModelBytes | None:
        """Return the model with this digest, if it is here or in the file."""
        return super().get(digest) or self._read(digest)

    def last(self) -> ModelBytes | None:
        """Return the model that is here, or in the file."""
        return super().last() or self._read()

    def keep(self, model: ModelBytes) -> None:
        """Keep a model in the place of the last one."""
        if super().get(model.digest) is None:
            replace(self._path, model.dtype.encode() + b"\n" + model.data)
        super().keep(model)

    def _read(self, digest: bytes | None = None) -> ModelBytes | None:
        """Read the file; whatever it holds, it is the model that is asked for only if the digest says so."""
        if not self._path.exists():
            return None
        dtype, _, data = self._path.read_bytes().partition(b"\n")
        name = dtype.decode("ascii", "replace")
        found = models.digest(name, data)
        if name not in models.DTYPES or digest not in (None, found):
            return None
        super().keep(ModelBytes(name, data, found))
        return super().last()


@dataclass(frozen=True)
class ClientDirectory:
    """Make what a `dordis.rounds.client.Client` and its owner need to survive a restart.

    After a restart, `client.restore(round)` for each of `journals.unfinished()` takes the round up again.
    """

    path: Path

    def __post_init__(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def journals(self) -> FileJournals:
        """Return the journals of the client's rounds."""
        return FileJournals(self.path / "journals")

    @property
    def models(self) -> FileModel:
        """Return where the last model is kept."""
        return FileModel(self.path / "model")

    def participation(self, cap: int | None = None) -> FileParticipation:
        """Return the count of the rounds taken part in."""
        return FileParticipation(self.path / "participations", cap)

    @property
    def trainings(self) -> FileTrainings:
        """Return the training count since the last counted round."""
        return FileTrainings(self.path / "trainings")

    @property
    def status(self) -> StatusFile:
        """Return what became of the client's trainings."""
        return StatusFile(self.path / "status.json")

    @property
    def runs(self) -> KnownRuns:
        """Return the runs that the client has accepted."""
        return KnownRuns(self.path / "runs")

    def remember(self, registry: SignedRegistry, authority: x509.Certificate) -> None:
        """Refuse a registry that brings back somebody who was revoked in a later one; keep the newest."""
        path = self.path / f"registry-{fingerprint(to_der(authority))}.json"
        newest = SignedRegistry.load(path, authority) if path.exists() else registry
        check_not_older(registry, newest)
        if registry.version >= newest.version:
            registry.save(path)
