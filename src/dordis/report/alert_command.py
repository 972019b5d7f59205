"""Alerts to an operator: when a run needs attention, a configured command is started; rounds never wait for it.

The command is the setting `alerts.command`. The command may contain an address or a password.  Therefore no manifest,
audit archive or message contains it.  In the run's directory only the private file `alerts.toml` contains it.
"""

import logging
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum

from dordis.errors import InputError
from dordis.records.run_records import RoundRecord
from dordis.report.live import BUDGET_WARNING
from dordis.report.numbers import format_number
from dordis.rounds.watch import REFUSED, AttemptFailed, WatchEvent

log = logging.getLogger("dordis.network")

DAY = 86400.0
EXPIRY = timedelta(days=30)
"""Time before the expiry of the server's certificate at which an alert is raised."""
SECONDS = 60.0
"""Seconds after which an alert command that is still running is killed."""


class Kind(Enum):
    """The kinds of alerts; the value of a kind is passed to the command as its argument KIND."""

    BUDGET = "budget"
    CERTIFICATE = "certificate"
    NO_ROUND = "no-round"
    REFUSED = "refused"
    IMPOSSIBLE_SUM = "impossible-sum"


class AlertCommand:
    """The alert command, executed as `COMMAND KIND RUN TEXT`, at most once a day for each kind of alert.

    `run` is the name of the run, `expires` the time at which the server's certificate expires.  `refusals` returns the
    clients that refused the latest attempt of a round.  `clock` returns seconds, `now` date and time.
    """

    def __init__(
        self,
        command: str,
        run: str,
        budget: float | None,
        expires: datetime,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        refusals: Callable[[], Sequence[int]] = lambda: (),
    ) -> None:
        self._words, self._run, self._budget, self._expires = split_command(command), run, budget, expires
        self._clock, self._now, self._refusals = clock, now, refusals
        self._raised: dict[Kind, float] = {}
        self._last_round = clock()
        self._stopped = threading.Event()
        self._lock = threading.Lock()

    def watch(self, event: WatchEvent) -> None:
        """Raise alerts about an impossible sum and about clients that refused, if the event is a failed attempt."""
        if not isinstance(event, AttemptFailed):
            return
        if event.survivors:
            named = ", ".join(map(str, event.survivors))
            cause = f"one of the clients {named}, or the server, caused it"
            self.alert(Kind.IMPOSSIBLE_SUM, f"the sum of round index {event.index} is impossible and not used; {cause}")
        if refused := self._refusals():
            self.alert(Kind.REFUSED, f"clients {', '.join(map(str, refused))} refused round index {event.index}")

    def finish_round(self, record: RoundRecord) -> None:
        """Raise alerts after a finished round: if 80 % of the budget are spent, and if clients refused the round."""
        self._last_round = self._clock()
        if record.epsilon is not None and self._budget and record.epsilon >= BUDGET_WARNING * self._budget:
            spent = f"{format_number(record.epsilon)} of {format_number(self._budget)}"
            self.alert(Kind.BUDGET, f"epsilon {spent} is spent after round {record.number}")
        if refused := record.dropped.get(REFUSED):
            self.alert(Kind.REFUSED, f"clients {', '.join(map(str, refused))} refused round {record.number}")

    def check_time(self) -> None:
        """Raise an alert if no round has finished for a day, or if the certificate expires within `EXPIRY`."""
        if self._clock() - self._last_round >= DAY:
            self.alert(Kind.NO_ROUND, "no round has finished for a day")
        if self._expires - self._now() <= EXPIRY:
            self.alert(Kind.CERTIFICATE, f"the server's certificate expires on {self._expires:%Y-%m-%d}")

    def start(self, every: float = 60.0) -> None:
        """Start a thread that calls `check_time` at once, and then again every `every` seconds."""

        def look() -> None:
            self.check_time()
            while not self._stopped.wait(every):
                self.check_time()

        threading.Thread(target=look, name="dordis alerts", daemon=True).start()

    def stop(self) -> None:
        """Stop the thread that `start` started."""
        self._stopped.set()

    def alert(self, kind: Kind, text: str) -> None:
        """Log an alert and run the command in a new thread, unless one of this kind was raised in the last 24 hours."""
        with self._lock:
            before, now = self._raised.get(kind), self._clock()
            if before is not None and now - before < DAY:
                return
            self._raised[kind] = now
        log.warning("alert (%s): %s", kind.value, text)
        threading.Thread(target=self._execute, args=(kind, text), name="dordis alert", daemon=True).start()

    def _execute(self, kind: Kind, text: str) -> None:
        words = [*self._words, kind.value, self._run, text]
        try:
            subprocess.run(words, stdin=subprocess.DEVNULL, timeout=SECONDS, check=True, env=dict(os.environ))
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("the alert command failed: %s", error)


def split_command(command: str) -> list[str]:
    """Return the words of a command, a program and its arguments; raise InputError if there is none.

    >>> split_command("mail -s dordis ops@example.org")
    ['mail', '-s', 'dordis', 'ops@example.org']
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"alerts.command is a program and its arguments: {error}") from None
    if not words:
        raise InputError("alerts.command is a program and its arguments: name one, or leave the section out")
    return words
