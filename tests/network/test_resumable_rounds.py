"""The open round of a server: stored, replayed after a restart, and disclosed in one way only."""

import errno
import sqlite3

import pytest

from dordis.errors import InputError, ProtocolError
from dordis.network.resumable_rounds import FILE, CompletedStage, ResumableExchange, RoundStore
from dordis.protocol import Garbled
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.plaintext import Begin, Joined
from dordis.protocols.secagg.messages import Unmask
from dordis.rounds.engine import InterruptedRound
from dordis.rounds.invitation import PieceReceived
from tests.network.local_server import PARAMETERS, ScriptedParty, to_clients

pytestmark = pytest.mark.network

HONEST, LIAR = (1, 2, 3), 4
OPEN_ROUND = InterruptedRound(3, PARAMETERS, {1: b"proof", 2: b""}, 7, 1.5)


def unmask(survivors):
    return dict.fromkeys(PARAMETERS.clients, Unmask(0, PARAMETERS.pack(survivors)))


def test_an_open_round_and_its_stages_survive_a_restart(tmp_path):
    store = RoundStore(tmp_path, CohortParameters)
    assert store.interrupted() is None
    store.begin_round(OPEN_ROUND)
    store.complete_stage(("CollectInput", 1), CompletedStage({2: b"two", 5: b"five"}, b"sum"))
    store.close()
    again = RoundStore(tmp_path, CohortParameters)
    assert again.interrupted() == OPEN_ROUND
    assert again.completed_stage(("CollectInput", 1)) == CompletedStage({2: b"two", 5: b"five"}, b"sum")
    assert again.completed_stage(("CollectInput", 0)) is None
    assert again.has_completed_stage(1)
    assert not again.has_completed_stage(0)
    again.close()


def test_a_new_round_replaces_the_previous_one(tmp_path):
    store = RoundStore(tmp_path, CohortParameters)
    store.begin_round(OPEN_ROUND)
    store.complete_stage(("Begin", -1), CompletedStage({1: b"one"}))
    store.record_disclosure(("Unmask", 0), unmask(PARAMETERS.clients))
    store.begin_round(InterruptedRound(4, PARAMETERS, {}, 7, 1.5))
    assert store.completed_stage(("Begin", -1)) is None
    store.record_disclosure(("Unmask", 0), unmask(PARAMETERS.clients[1:]))
    store.close()


def test_a_sum_is_disclosed_by_the_same_requests_again_and_by_no_others(tmp_path):
    store = RoundStore(tmp_path, CohortParameters)
    store.begin_round(OPEN_ROUND)
    store.record_disclosure(("Unmask", 0), unmask(PARAMETERS.clients))
    store.close()
    store = RoundStore(tmp_path, CohortParameters)
    store.record_disclosure(("Unmask", 0), unmask(PARAMETERS.clients))
    with pytest.raises(ProtocolError, match="disclosed"):
        store.record_disclosure(("Unmask", 0), unmask(PARAMETERS.clients[1:]))
    with pytest.raises(ProtocolError, match="disclosed"):
        store.record_disclosure(("Unmask", 0), dict(list(unmask(PARAMETERS.clients).items())[1:]))
    store.close()


def test_the_stored_round_is_private_and_erased_at_the_end_of_the_run(tmp_path):
    store = RoundStore(tmp_path, CohortParameters)
    store.begin_round(OPEN_ROUND)
    store.complete_stage(("CollectInput", 1), CompletedStage({2: b"a frame of client two"}, b"the sum of chunk one"))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    store.erase()
    assert store.interrupted() is None
    assert not store.has_completed_stage(1)
    store.close()
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"client two" not in left
    assert b"chunk one" not in left


class Garbler(ScriptedParty):
    """A party that replies to one request with a message of another kind."""

    def handle(self, request):
        return PieceReceived(0) if isinstance(request, Begin) else super().handle(request)


def test_garbage_is_replayed_as_garbage_after_a_restart(local, tmp_path):
    for u in HONEST:
        local.join(u, ScriptedParty(u), once=False)
    local.join(LIAR, Garbler(LIAR), once=False)
    everyone = (*HONEST, LIAR)

    def begun():
        exchange = ResumableExchange(local.server.exchange, store)
        return dict(local.server.perform(exchange(to_clients(Begin(PARAMETERS), everyone))))

    right = dict.fromkeys(HONEST, Joined()) | {LIAR: Garbled()}
    store = RoundStore(tmp_path, CohortParameters)
    assert begun() == right
    store.close()
    store = RoundStore(tmp_path, CohortParameters)
    assert begun() == right
    store.close()


def test_the_last_index_survives_a_restart_and_never_decreases(tmp_path):
    store = RoundStore(tmp_path, CohortParameters)
    assert store.last_index() == -1
    for index in (3, 4, 2):
        store.record_index(index)
    store.begin_round(OPEN_ROUND)
    store.close()
    again = RoundStore(tmp_path, CohortParameters)
    assert again.last_index() == 4
    again.close()


def test_only_a_full_disk_is_reported_as_one(tmp_path):
    store = RoundStore(tmp_path, CohortParameters)
    store._database.execute("PRAGMA max_page_count = 1")
    with pytest.raises(OSError, match="full") as full:
        store.complete_stage(("Unmask", 0), CompletedStage({1: bytes(1 << 16)}))
    assert full.value.errno == errno.ENOSPC
    store._database.execute("PRAGMA max_page_count = 1000000")
    store._database.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(InputError, match="database is locked"):
        store.record_index(3)
    other.close()
    store.record_index(3)
    store.close()
