"""The invitation of a round in a thread of its own, while the server evaluates the round before.

Clients train meanwhile.  Nothing of the invited round is counted or charged: the coordinator does that afterwards, in
the thread that evaluates and stores rounds, so that a round is on disk before the next one costs privacy.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from dordis.records.run_records import timestamp
from dordis.rounds.engine import Gathered
from dordis.rounds.invitation import Invitation
from dordis.runs.plan import RoundPlan


@dataclass(frozen=True)
class InvitedRound:
    """A round to which clients were invited, and for which those that are ready have trained."""

    planned: RoundPlan
    invitation: Invitation
    gathered: Gathered

    @property
    def invited(self) -> int:
        """Return the number of invited clients."""
        return len(self.invitation.clients)


class EarlyInvitation:
    """An invitation in a daemon thread, which waits for clients; a process that ends does not wait for this thread."""

    def __init__(self, invite: Callable[[], InvitedRound]) -> None:
        self.began = timestamp(), time.perf_counter()
        self._invite, self._invited = invite, Future[InvitedRound]()
        threading.Thread(target=self._run, name="dordis invitation", daemon=True).start()

    def _run(self) -> None:
        try:
            self._invited.set_result(self._invite())
        except BaseException as error:  # noqa: BLE001  `result` raises it
            self._invited.set_exception(error)

    def result(self) -> InvitedRound:
        """Wait for the clients, and return the invited round; errors of the invitation are raised here."""
        return self._invited.result()
