"""The pauses of a deployed run before it repeats a failed round."""

import logging
import time
from collections.abc import Callable

log = logging.getLogger("dordis.network")

LONGEST_RETRY_PAUSE = 60.0
"""Longest pause in seconds before a failed round is repeated."""


class RetryPauses:
    """Pauses before a failed round is repeated, each twice as long as the last, because the cause may pass."""

    def __init__(self, first: float, sleep: Callable[[float], None] = time.sleep) -> None:
        self._first, self._sleep, self._attempts = first, sleep, 0

    def wait(self) -> None:
        """Wait if an attempt at the current round has failed; longer after each further failure."""
        if self._attempts:
            seconds = min(self._first * 2 ** (self._attempts - 1), LONGEST_RETRY_PAUSE)
            log.info("the round is tried again in %g s", seconds)
            self._sleep(seconds)

    def start_attempt(self) -> None:
        """Record that an attempt at the current round begins."""
        self._attempts += 1

    def end_round(self) -> None:
        """Record that the round is finished."""
        self._attempts = 0
