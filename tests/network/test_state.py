"""What a server keeps of the round under way: it is there again after a restart, and no sum is opened in two ways."""

import pytest

from dordis.errors import ProtocolError
from dordis.network.state import Closed, ServerState
from dordis.protocols.secagg.messages import Unmask
from dordis.rounds.server import InterruptedRound
from tests.rounds.parties import agreed

PARAMETERS = agreed(chunks=2)
BEGUN = InterruptedRound(3, PARAMETERS, {1: b"proof", 2: b""}, 7, 1.5)


def unmask(survivors):
    return dict.fromkeys(PARAMETERS.clients, Unmask(0, PARAMETERS.pack(survivors)))


def test_a_round_and_its_stages_are_there_again_after_a_restart(tmp_path):
    state = ServerState(tmp_path)
    assert state.interrupted() is None
    state.begin(BEGUN)
    state.close_stage(("CollectInput", 1), Closed({2: b"two", 5: b"five"}, b"sum"))
    state.end()
    again = ServerState(tmp_path)
    assert again.interrupted() == BEGUN
    assert again.closed(("CollectInput", 1)) == Closed({2: b"two", 5: b"five"}, b"sum")
    assert again.closed(("CollectInput", 0)) is None
    assert again.has_begun(1)
    assert not again.has_begun(0)
    again.end()


def test_a_new_round_takes_the_place_of_the_one_before(tmp_path):
    state = ServerState(tmp_path)
    state.begin(BEGUN)
    state.close_stage(("Begin", -1), Closed({1: b"one"}))
    state.disclose(("Unmask", 0), unmask(PARAMETERS.clients))
    state.begin(InterruptedRound(4, PARAMETERS, {}, 7, 1.5))
    assert state.closed(("Begin", -1)) is None
    state.disclose(("Unmask", 0), unmask(PARAMETERS.clients[1:]))
    state.end()


def test_a_sum_is_opened_by_the_same_requests_again_and_by_no_others(tmp_path):
    state = ServerState(tmp_path)
    state.begin(BEGUN)
    state.disclose(("Unmask", 0), unmask(PARAMETERS.clients))
    state.end()
    state = ServerState(tmp_path)
    state.disclose(("Unmask", 0), unmask(PARAMETERS.clients))
    with pytest.raises(ProtocolError, match="opened"):
        state.disclose(("Unmask", 0), unmask(PARAMETERS.clients[1:]))
    with pytest.raises(ProtocolError, match="opened"):
        state.disclose(("Unmask", 0), dict(list(unmask(PARAMETERS.clients).items())[1:]))
    state.end()


def test_what_is_kept_is_for_the_owner_alone_and_is_erased_in_the_end(tmp_path):
    state = ServerState(tmp_path)
    state.begin(BEGUN)
    state.close_stage(("CollectInput", 1), Closed({2: b"a frame of client two"}, b"the sum of chunk one"))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    state.empty()
    assert state.interrupted() is None
    assert not state.has_begun(1)
    state.end()
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"client two" not in left
    assert b"chunk one" not in left
