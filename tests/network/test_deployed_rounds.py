"""A deployed round waits for its public randomness, and pauses before it is tried again."""

import pytest

from dordis.errors import ProtocolError
from dordis.network.deployed_rounds import BEACON_POLL, RetryPauses, wait_for_beacon
from dordis.owner.manifest_checks import creation_time
from dordis.selection.beacon import FileBeacon, SeedBeacon
from tests.network.test_client_setup import lines
from tests.network.test_helper_setup import manifest


def test_a_server_waits_until_the_line_of_the_round_is_published(tmp_path):
    path, waited = tmp_path / "published.txt", []
    path.write_text(lines(1, 2))

    def publish_next(seconds):
        waited.append(seconds)
        path.write_text(lines(1, 2 + len(waited)))

    wait_for_beacon(FileBeacon(path), 4, publish_next)
    assert waited == [BEACON_POLL] * 3
    wait_for_beacon(FileBeacon(path), 4, publish_next)
    wait_for_beacon(SeedBeacon(bytes(32)), 10**6, publish_next)
    assert len(waited) == 3


def test_a_line_that_is_older_than_the_manifest_is_refused(tmp_path):
    path = tmp_path / "published.txt"
    path.write_text(lines(1, 2))
    with pytest.raises(ProtocolError, match="not later than the run's manifest"):
        wait_for_beacon(FileBeacon(path, after=creation_time(manifest())), 0)


def test_pauses_between_tries_grow_and_start_anew_with_the_next_round():
    waited = []
    pauses = RetryPauses(2.0, waited.append)
    for _ in range(8):
        pauses.wait()
        pauses.start_attempt()
    pauses.end_round()
    pauses.wait()
    assert waited == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
