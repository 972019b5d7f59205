"""What a client's owner reads of its trainings: counts and kinds of failures, never what failed on which data."""

import json
import stat

import pytest

from dordis.federation.client_directory import ClientDirectory
from dordis.federation.client_status import ClientStatus
from dordis.rounds.user_code import FAILED, LATE, NOT_ENCODED, ZeroOnFailure

QUOTED = "the diagnosis of patient 7"


@pytest.fixture
def directory(tmp_path):
    return ClientDirectory(tmp_path / "state")


def test_zero_updates_are_counted_by_kind_and_survive_a_restart(directory):
    outcomes = (("round 1", ""), ("round 2", FAILED), ("", NOT_ENCODED), ("round 3", LATE), ("round 4", LATE))
    for what, failure in outcomes:
        directory.status.note(what, failure)
    status = ClientDirectory(directory.path).status.read()
    assert (status.last, status.zero_updates) == ("round 4", 4)
    assert status.failures == {"training failed": 1, "encoding failed": 1, "too late": 2}
    told = status.describe()
    assert "4 zero updates (1 encoding failed, 2 too late, 1 training failed)" in told
    assert status.last_error in told
    assert "\n" not in told


def test_a_training_that_goes_well_is_written_too_so_that_writing_tells_nothing(directory):
    code = ZeroOnFailure(lambda message: None, directory.status.note)
    assert code.train("training of round 1", lambda: QUOTED) == QUOTED
    assert directory.status.read() == ClientStatus(last="training of round 1")
    assert directory.status.read().describe() == "status: no zero updates; the last was training of round 1"


def test_the_file_is_for_the_owner_alone_and_quotes_no_exception(directory):
    def fail():
        raise ValueError(QUOTED)

    told = []
    code = ZeroOnFailure(told.append, directory.status.note)
    assert code.train("training of round 1", fail) is None
    assert code.encode("encoding", fail, 1) is None
    path = directory.path / "status.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(told) == 2
    assert QUOTED in told[0]
    assert QUOTED not in path.read_text()
    assert json.loads(path.read_text())["zero_updates"] == 2


def test_a_damaged_file_ends_no_round(directory):
    (directory.path / "status.json").write_bytes(b"{")
    assert directory.status.read() == ClientStatus()
    directory.status.note("round 1", FAILED)
    assert directory.status.read().zero_updates == 1
