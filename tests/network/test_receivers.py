"""Processes that only receive: the same sum, whoever is refused, comes late or is killed."""

import asyncio
import os
import signal
import threading

import numpy as np
import pytest

from dordis.errors import InputError, ReceiverLost, RoundFailed
from dordis.kernels.packing import add_packed
from dordis.network import uploads
from dordis.protocols.plaintext.messages import Begin, Contribute
from tests.network.federation import enrol
from tests.network.local import HANG, LocalServer
from tests.network.test_server import PARAMETERS, SIZE, VECTORS, Answers, to_all
from tests.rounds.parties import invite_to

pytestmark = pytest.mark.network

CLIENTS = (1, 2, 3, 4)
BITS, COUNT = 32, SIZE // 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return enrol(tmp_path_factory.mktemp("federation"), len(CLIENTS))


@pytest.fixture
def local(folder, monkeypatch):
    monkeypatch.setattr("dordis.network.intake.ANNOUNCED", 0.2)  # what comes too late is told so soon
    started = LocalServer(folder, receivers=2, stage=HANG, train=HANG, grace=HANG)
    yield started
    started.close()


@pytest.fixture
def parties(local):
    joined = {u: Answers(u) for u in CLIENTS}
    for u, party in joined.items():
        local.join(u, party, once=False)
    local.ask(to_all(Begin(PARAMETERS), CLIENTS))
    return joined


def asked(local, clients=CLIENTS, chunk=0):
    return local.server.perform(local.server.exchange(to_all(Contribute(chunk), clients)))


def summed(replies):
    total, clients = np.zeros(COUNT, np.uint32), set()
    for u, reply in replies:
        add_packed(total, reply.vector, BITS)
        clients.add(u)
    return total, clients


def expected(clients):
    return np.sum([np.frombuffer(VECTORS[u], "<u4") for u in clients], axis=0, dtype=np.uint32)


def of_client(local, u):
    (remote,) = (one for one in local.server.uploads.remotes if u in one.clients)
    return remote


def killed(remote):
    os.kill(remote.process.pid, signal.SIGKILL)
    remote.process.join(HANG)


def test_the_sum_is_the_same_and_every_receiver_has_had_its_part(local, parties):
    assert [len(remote.clients) for remote in local.server.uploads.remotes] == [2, 2]
    for chunk in (0, 1):
        total, clients = summed(asked(local, chunk=chunk))
        assert clients == set(CLIENTS)
        assert np.array_equal(total, expected(CLIENTS))
    assert not local.server.intake._done  # the server's own process has received nothing


def test_a_vector_that_is_not_accepted_is_not_in_the_sum(local, parties):
    """Client 2's token is wrong, say; client 3's vector has bytes that nobody packs."""
    total, replies = np.zeros(COUNT, np.uint32), asked(local)
    for u, reply in replies:
        if u == 3:
            with pytest.raises(InputError, match="take"):
                add_packed(total, reply.vector, BITS - 1)
        elif u != 2:
            add_packed(total, reply.vector, BITS)
    assert np.array_equal(total, expected((1, 4)))
    assert np.array_equal(summed(asked(local))[0], expected(CLIENTS))


def test_padding_is_checked_before_a_vector_is_added(local, parties, monkeypatch):
    bits = next(b for b in range(8, BITS) if 0 < 8 * SIZE % b < 8)  # so that the last byte has padding
    count = 8 * SIZE // bits
    monkeypatch.setitem(VECTORS, 2, VECTORS[2][:-1] + b"\xff")
    total, right, refused = np.zeros(count, np.uint32), np.zeros(count, np.uint32), set()
    for u, reply in asked(local):
        try:
            add_packed(total, reply.vector, bits)
        except InputError:
            refused.add(u)
        else:
            add_packed(right, VECTORS[u], bits)
    assert refused == {2}
    assert np.array_equal(total & 2**bits - 1, right & 2**bits - 1)


def test_whoever_is_late_is_not_in_the_sum_and_frees_its_buffer(local, parties):
    for _ in range(8):  # twice as many as there are buffers
        parties[3]._holds = (Contribute,)
        parties[3].reached.clear()
        parties[3].go.clear()
        replies = asked(local)
        total, clients = np.zeros(COUNT, np.uint32), set()
        while clients != {1, 2, 4}:
            u, reply = next(replies)
            add_packed(total, reply.vector, BITS)
            clients.add(u)
        assert parties[3].reached.wait(HANG)
        local.server.exchange._loop.call_soon_threadsafe(local.server.exchange.leave, 3)
        assert list(replies) == []
        assert np.array_equal(total, expected((1, 2, 4)))
        parties[3].go.set()
        parties[3]._holds = ()
        local.server.perform(local.server.exchange({9: invite_to(PARAMETERS)})).close()
    assert np.array_equal(summed(asked(local))[0], expected(CLIENTS))


def test_a_receiver_killed_before_it_added_anything_costs_nothing(local, parties):
    parties[1]._holds = (Contribute,)
    replies = asked(local, (1,))
    assert parties[1].reached.wait(HANG)
    killed(of_client(local, 1))
    parties[1].go.set()
    total, clients = summed(replies)
    assert clients == {1}
    assert np.array_equal(total, expected((1,)))
    local.server.wait(lambda there: there.issuperset(CLIENTS), HANG)
    assert np.array_equal(summed(asked(local))[0], expected(CLIENTS))


def test_a_receiver_killed_after_it_added_something_fails_the_round_and_the_next_is_right(local, parties):
    replies, total = asked(local, (1,)), np.zeros(COUNT, np.uint32)
    add_packed(total, next(replies)[1].vector, BITS)
    killed(of_client(local, 1))
    with pytest.raises(ReceiverLost, match="receive process"):
        next(replies)
    local.server.perform(local.server.exchange({9: invite_to(PARAMETERS)})).close()
    total, clients = summed(asked(local))
    assert clients == set(CLIENTS)
    assert np.array_equal(total, expected(CLIENTS))
    assert not local.server.intake._done  # the receiver was started again, and has received its part
    assert [remote.process.is_alive() for remote in local.server.uploads.remotes] == [False, True, True]


def test_receivers_that_end_again_and_again_are_not_started_for_ever(local, parties, monkeypatch):
    local.server.uploads._restarts = 0
    for remote in list(local.server.uploads.remotes):
        killed(remote)
    local.server.perform(local.server.exchange({9: invite_to(PARAMETERS)})).close()
    total, clients = summed(asked(local))
    assert clients == set(CLIENTS)
    assert np.array_equal(total, expected(CLIENTS))
    assert local.server.intake._done  # nobody else is left to receive


def test_what_a_failed_round_left_behind_takes_no_buffers_from_the_next(local, parties):
    for _ in range(3):  # of four buffers
        replies = asked(local)
        next(replies)
        replies.close()
        local.server.perform(local.server.exchange({9: invite_to(PARAMETERS)})).close()
    assert np.array_equal(summed(asked(local))[0], expected(CLIENTS))


def test_a_sum_of_fewer_vectors_than_were_accepted_is_not_used():
    wanted = uploads.RemoteSum(np.zeros(1, np.uint32), BITS, bodies=2)
    with pytest.raises(RoundFailed):
        uploads.check_all_added(uploads.Summed(1, 1, b"\0\0\0\0"), wanted)


def test_receivers_end_with_the_server(folder):
    started = LocalServer(folder, receivers=2)
    processes = [remote.process for remote in started.server.uploads.remotes]
    assert all(process.is_alive() for process in processes)
    started.close()
    assert [process.exitcode for process in processes] == [0, 0]


def test_a_server_stops_while_a_receiver_is_started_in_the_place_of_another(folder, monkeypatch):
    started, attaching = LocalServer(folder, receivers=1), threading.Event()
    own, over = started.server.uploads, uploads.OrderChannel.over
    close, closing = own.close, asyncio.Event()

    server = os.getpid()

    async def hold(pair):
        if os.getpid() == server:
            attaching.set()
            await closing.wait()
        return await over(pair)

    async def begin_to_close():
        asyncio.get_running_loop().call_soon(closing.set)  # when `close` waits for the first time
        await close()

    monkeypatch.setattr(uploads.OrderChannel, "over", hold)
    monkeypatch.setattr(own, "close", begin_to_close)
    killed(own.remotes[0])
    assert attaching.wait(HANG)
    stopping = threading.Thread(target=started.close, daemon=True)
    stopping.start()
    stopping.join(HANG)
    assert not stopping.is_alive()
    assert [remote.process.exitcode for remote in own.remotes] == [-signal.SIGKILL, 0]
