"""Waiting for the public randomness of a round, which a third party publishes line by line."""

import logging
import time
from collections.abc import Callable

from dordis.selection.beacon import Beacon, FileBeacon

log = logging.getLogger("dordis.network")

POLL = 0.5
"""Seconds between two reads of the beacon file while its next line is awaited."""


def wait_for_beacon(beacon: Beacon, index: int, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until the beacon line of a round is published; raise if the line is not later than the run's manifest."""
    if not isinstance(beacon, FileBeacon):
        return
    if not beacon.is_published(index):
        log.info("waiting for line %d of the beacon %s", beacon.first + index + 1, beacon.path.name)
    while not beacon.is_published(index):
        sleep(POLL)
    beacon.value(index)
