"""State of a pinned node in its owner's directory, on disk before a reply is handed to Flower.

Flower sends a reply first and stores the context of the node afterwards.  A node that is stopped in between would
forget its answer, and could answer a second time differently.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from dordis.federation.client_directory import ClientDirectory
from dordis.federation.durable import create
from dordis.federation.journal import FileJournals
from dordis.federation.participation import FileParticipation
from dordis.federation.trainings import FileTrainings
from dordis.integrations.flower.messages import Charter
from dordis.protocol import ENCODER


@dataclass(frozen=True)
class FileState:
    """Journals, count of participations and the charter of a run of Flower, in a directory of one key."""

    path: Path
    run: int
    """Flower's id of the run."""

    @property
    def journals(self) -> FileJournals:
        """Return the journals of the node's rounds."""
        return ClientDirectory(self.path).journals

    @property
    def under_way(self) -> bytes | None:
        """Return the round that this node is in, if any."""
        unfinished = self.journals.unfinished()
        return unfinished[0] if unfinished else None

    @property
    def charter(self) -> Charter | None:
        """Return the charter of the run, if it has come."""
        file = self._charter_file
        return msgspec.msgpack.decode(file.read_bytes(), type=Charter) if file.exists() else None

    def keep_charter(self, charter: Charter) -> None:
        """Store the charter of the run; it is never replaced."""
        ClientDirectory(self.path)
        create(self._charter_file, ENCODER.encode(charter))

    def participation(self) -> FileParticipation:
        """Return the count of all rounds of this key, over all runs and servers."""
        return ClientDirectory(self.path).participation()

    def trainings(self) -> FileTrainings:
        """Return the training count since the last counted round."""
        return ClientDirectory(self.path).trainings

    def note_training(self, what: str, failure: str) -> None:
        """Record the outcome of a training for the owner."""
        ClientDirectory(self.path).status.note(what, failure)

    def drop_input(self, round: bytes) -> None:
        """Do nothing: the input is encrypted under a key that is destroyed when the next round begins."""

    @property
    def _charter_file(self) -> Path:
        return self.path / f"charter-{self.run}"
