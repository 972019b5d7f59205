"""What became of a client's trainings, for its owner alone: a small file in the client's directory.

It is written after every training, whether that failed or not, so that the time this takes tells a server nothing.  It
holds no data, and no message of an exception, which may quote data.
"""

from pathlib import Path

import msgspec

from dordis.federation.durable import PRIVATE, replace
from dordis.federation.records import timestamp


class ClientStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an owner should know about a client.

    >>> ClientStatus().describe()
    'status: this client has not trained yet'
    """

    last: str = ""
    """The last training: whose, and in which round."""
    zero_updates: int = 0
    """Updates that were zero because something failed."""
    failures: dict[str, int] = {}
    """The same by the kind of failure."""
    last_error: str = ""
    """When the last of them was, in UTC."""

    def after(self, what: str, failure: str, now: str) -> "ClientStatus":
        """Return the status after a training and its failure; either is empty where there is nothing new to note."""
        status = msgspec.structs.replace(self, last=what or self.last)
        if not failure:
            return status
        counted = self.failures | {failure: self.failures.get(failure, 0) + 1}
        return msgspec.structs.replace(status, zero_updates=self.zero_updates + 1, failures=counted, last_error=now)

    def describe(self) -> str:
        """Return the status in one line."""
        if not self.last:
            return "status: this client has not trained yet"
        if not self.zero_updates:
            return f"status: no zero updates; the last was {self.last}"
        why = ", ".join(f"{count} {failure}" for failure, count in sorted(self.failures.items()))
        since = f"the last error at {self.last_error}; the last was {self.last}"
        return f"status: {self.zero_updates} zero updates ({why}), {since}"


class StatusFile:
    """The status of a client, durably; without a file, or if it was damaged, the counts begin anew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> ClientStatus:
        """Return the status."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=ClientStatus)
        except (OSError, msgspec.DecodeError):
            return ClientStatus()

    def note(self, what: str, failure: str) -> None:
        """Write down a training, and why its update is zero if it is."""
        replace(self._path, msgspec.json.encode(self.read().after(what, failure, timestamp())) + b"\n", PRIVATE)
