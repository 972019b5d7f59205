"""The training count: how often a client has trained since a round last counted its participation.

Training reveals nothing to the server that is known.  The bound limits an unknown leak: a server cannot have a client
train again and again without a participation.
"""

from pathlib import Path

from dordis.errors import InputError, ParametersRefused
from dordis.federation.durable import replace


class MemoryTrainings:
    """A training count in memory.

    >>> mine = MemoryTrainings()
    >>> mine.begin(participations=0, most=1)
    >>> mine.begin(participations=1, most=1)
    """

    def __init__(self) -> None:
        self._counted = (0, 0)

    def begin(self, participations: int, most: int | None) -> None:
        """Count a training before it begins, or raise beyond `most`; a new participation resets the count."""
        if most is None:
            return
        since, count = self._read()
        count = count if since == participations else 0
        check_trainings(count, most)
        self._write(participations, count + 1)

    def _read(self) -> tuple[int, int]:
        """Return the number of participations at the last training, and the trainings since then."""
        return self._counted

    def _write(self, participations: int, count: int) -> None:
        self._counted = (participations, count)


class FileTrainings(MemoryTrainings):
    """A training count in a file, which survives a restart."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _read(self) -> tuple[int, int]:
        if not self._path.exists():
            return (0, 0)
        try:
            since, count = map(int, self._path.read_text(encoding="ascii").split())
        except ValueError:
            raise InputError(f"{self._path} does not hold two numbers: remove it to reset the training count") from None
        return since, count

    def _write(self, participations: int, count: int) -> None:
        replace(self._path, b"%d %d\n" % (participations, count))


def check_trainings(count: int, most: int) -> None:
    """The client has trained less often since its last counted participation than its owner allows."""
    if count >= most:
        raise ParametersRefused(
            f"the owner's policy, line 'trainings', forbids this round: this client has trained {count} times since "
            "its last counted participation; if rounds failed by bad luck, raise deployment.trainings, or remove the "
            "file 'trainings' in the client's directory"
        )
