"""The directory of a client: the status of its trainings, and the state that survives new keys."""

import json
import re
import stat

import pytest

from dordis.errors import InputError
from dordis.identity.authority import new_request
from dordis.identity.certificates import new_tls_key
from dordis.identity.keys import Keys, PrivateKeys, load_client_credentials, load_keys, save_keys
from dordis.owner.directory import ClientDirectory, ClientStatus, default_state
from dordis.owner.participation import OwnerBudget
from dordis.protocols.costs import RoundCost
from dordis.rounds.user_code import FAILED, LATE, NOT_ENCODED, ZeroOnFailure
from tests.conftest import ROOT
from tests.runs.parties import NOW, approved, authority_at, joined

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
    noted = directory.status.read()
    assert noted == ClientStatus(last="training of round 1", last_contact=noted.last_contact)
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


@pytest.mark.parametrize("identity", [False, True])
def test_the_participation_count_survives_new_keys_of_the_client(tmp_path, identity):
    authority = authority_at(tmp_path / "federation")
    old, new = joined(authority, tmp_path / "alice.key"), tmp_path / "alice-2.key"
    before = ClientDirectory(default_state(old)).participation()
    for index in range(3):
        before.reserve(bytes(32), index, cost=RoundCost(0.25, 0.0))
    former = load_keys(old)
    private = PrivateKeys(new_tls_key(), Keys.generate() if identity else former.keys)
    save_keys(new, private)
    approved(authority, new, new_request("alice", private, replaces=former.keys))
    assert load_client_credentials(new, NOW).name == "alice"
    after = ClientDirectory(default_state(new)).participation()
    assert default_state(new) == default_state(old) == tmp_path / "alice.state"
    assert (after.count(), after.spent()) == (3, before.spent())
    budget = OwnerBudget(6.0, 1e-5)
    assert budget.epsilon_spent(after.spent()) == budget.epsilon_spent(before.spent()) > 0


def test_a_missing_key_or_certificate_is_named_with_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"no key file .*alice.key: make one with dordis keys request"):
        default_state(tmp_path / "alice.key")
    save_keys(tmp_path / "alice.key", PrivateKeys(new_tls_key(), Keys.generate()))
    for load in (default_state, lambda key: load_client_credentials(key, NOW)):
        with pytest.raises(
            InputError, match=r"no .*alice.cert: have .*alice.request approved, and save the certificat"
        ):
            load(tmp_path / "alice.key")


def test_the_page_for_a_hospitals_it_lists_every_file_of_the_directory():
    page = (ROOT / "docs" / "hospital_it.md").read_text()
    listed = set(re.findall(r"`ward\.state/([\w.*-]+?)/?`", page))
    source = (ROOT / "src" / "dordis" / "owner" / "directory.py").read_text()
    written = set(re.findall(r'self\.path / f?"([\w.-]+)', source))
    assert {name.removesuffix("*.json") for name in listed} == written
    assert len(written) == 8
