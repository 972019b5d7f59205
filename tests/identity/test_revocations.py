"""Keys that were revoked before a run began are refused, whether they are a client's or a helper's."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from dordis.errors import LedgerDamaged, ParametersRefused
from dordis.identity.registry import registry_with_helpers
from dordis.identity.revocations import CLOCK_ERROR, check_revocations
from dordis.ledger.verification import check_keys_valid, members_at_start
from tests.runs.parties import NOW, authority_at, joined

TIME = "%Y-%m-%dT%H:%M:%SZ"


def manifest(members, created: datetime = NOW):
    """Return the fields that the check reads of the manifest of a run with helper 3."""
    listed = members.fingerprints()
    return SimpleNamespace(created=created.strftime(TIME), members=listed, assistance=SimpleNamespace(helpers=(3,)))


@pytest.fixture
def authority(tmp_path):
    authority = authority_at(tmp_path / "federation")
    for name in ("alice", "bob", "carol"):
        joined(authority, tmp_path / f"{name}.key")
    return authority


@pytest.mark.parametrize(("name", "said"), [("bob", r"client 2 \('bob'\)"), ("carol", r"helper 3 \('carol'\)")])
def test_no_run_begins_with_keys_that_were_revoked_before(authority, name, said):
    began = registry_with_helpers(authority.registry, [3])
    authority.revoke(name, "its keys leaked")
    known = authority.registry
    revoked = datetime.fromisoformat(known.membership.revoked[0].when).astimezone(UTC)
    in_time, late = (
        manifest(began, revoked + CLOCK_ERROR),
        manifest(began, revoked + CLOCK_ERROR + timedelta(seconds=1)),
    )
    assert members_at_start(known, late).root() == began.root()
    check_revocations(in_time, began, known.membership.revoked)
    check_keys_valid(known, began, in_time)
    check_keys_valid(began, began, late)  # a registry without a signature lists no revocations
    with pytest.raises(ParametersRefused, match=f"keys of {said} that were revoked on"):
        check_revocations(late, began, known.membership.revoked)
    with pytest.raises(LedgerDamaged, match=f"keys of {said} that were revoked on"):
        check_keys_valid(known, began, late)
