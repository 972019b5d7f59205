"""How often a client has trained since a round last counted it: a server may not have it train again and again.

Training tells the server nothing, as far as anybody knows; this bounds what an unknown way to look at it is worth.
"""

from pathlib import Path

from dordis.errors import InputError, ParametersRefused
from dordis.federation.durable import replace


class MemoryTrainings:
    """A count that lasts as long as the process.

    >>> mine = MemoryTrainings()
    >>> mine.begin(participations=0, most=1)
    >>> mine.begin(participations=1, most=1)
    """

    def __init__(self) -> None:
        self._counted = (0, 0)

    def begin(self, participations: int, most: int | None) -> None:
        """Count a training before it begins, or refuse it beyond `most`; every participation begins the count anew."""
        if most is None:
            return
        since, count = self._read()
        count = count if since == participations else 0
        check_trainings(count, most)
        self._write(participations, count + 1)

    def _read(self) -> tuple[int, int]:
        """Return the participations at the last training, and the trainings since."""
        return self._counted

    def _write(self, participations: int, count: int) -> None:
        self._counted = (participations, count)


class FileTrainings(MemoryTrainings):
    """A count in a file: it is there after a restart."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _read(self) -> tuple[int, int]:
        if not self._path.exists():
            return (0, 0)
        try:
            since, count = map(int, self._path.read_text(encoding="ascii").split())
        except ValueError:
            raise InputError(f"{self._path} was altered: remove it to begin the count of trainings anew") from None
        return since, count

    def _write(self, participations: int, count: int) -> None:
        replace(self._path, b"%d %d\n" % (participations, count))


def check_trainings(count: int, most: int) -> None:
    """The client has trained less often than its owner allows until a round counts it."""
    if count >= most:
        raise ParametersRefused(
            f"the owner's policy, line 'trainings', forbids this round: this client has trained {count} times since a "
            "round last counted it; raise deployment.trainings, or begin the count anew, if that was bad luck"
        )
