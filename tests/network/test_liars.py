"""Clients that lie to the network: each is named and costs little, whatever it says twice, garbles or delays."""

import asyncio
from datetime import UTC, datetime

import aiohttp
import numpy as np
import pytest

from dordis import wire
from dordis.federation.config import Deadlines
from dordis.federation.identity import load_identity
from dordis.kernels.packing import add_packed
from dordis.network import bulk
from dordis.network.deadlines import Patience
from dordis.network.doors import FederationPass
from dordis.network.exchange import NetworkExchange
from dordis.network.messages import Answered, Asked, Beside
from dordis.network.recorded import RecordedExchange
from dordis.network.state import ServerState
from dordis.protocol import Garbled
from dordis.protocols.plaintext.messages import Begin, Contribute, Contribution, Joined
from dordis.rounds.invitation import PieceReceived, SendModel
from dordis.simulation.clock import run_virtually
from tests.network.federation import enrol
from tests.network.local import HANG, LocalServer
from tests.network.test_hostile import THREADS, Villain
from tests.network.test_receivers import BITS, COUNT, expected
from tests.network.test_server import PARAMETERS, SIZE, Answers, to_all
from tests.rounds.parties import invite_to

pytestmark = pytest.mark.network

HONEST, LIAR = (1, 2, 3), 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return enrol(tmp_path_factory.mktemp("federation"), LIAR)


@pytest.fixture
def serving(folder, monkeypatch):
    monkeypatch.setattr("dordis.network.intake.ANNOUNCED", 0.2)  # what is not expected any more is told so soon
    started = []

    def start(**options):
        started.append(LocalServer(folder, **{"stage": HANG, "train": HANG, "grace": HANG} | options))
        for u in HONEST:
            started[-1].join(u, Answers(u), once=False)
        return started[-1]

    yield start
    for local in started:
        local.close()


class TwoTongues(Villain):
    """Announce an upload, come again, and announce it with another size: what is sent has the first."""

    def __init__(self, local):
        super().__init__(local, FederationPass(load_identity(local.folder / f"c{LIAR}.key", datetime.now(UTC))))

    async def first(self, _, session, socket):
        begun = await self.request(socket)
        await socket.send_bytes(wire.encode(Answered(begun.id, wire.encode(Joined()))))
        url = await self.announce(socket, 8)
        while (await self.status(session.head(url, headers=self.headers(), ssl=self.credentials.context))) != 200:
            await asyncio.sleep(0.05)  # the announcement goes another way

    async def second(self, _, session, socket):
        url = await self.announce(socket, SIZE)
        return await self.status(session.put(url, data=bytes(8), headers=self.headers(), ssl=self.credentials.context))

    async def announce(self, socket, size):
        asked = await self.request(socket)
        answer = Answered(asked.id, wire.encode(Contribution(0, b"")), Beside(size, bulk.seal(bytes(8))))
        await socket.send_bytes(wire.encode(answer))
        return f"https://localhost:{self.welcome.port or self.local.server.port}/vectors/{asked.id}"

    async def status(self, sent):
        try:
            async with sent as response:
                return response.status
        except (aiohttp.ClientError, OSError):
            return 0

    async def lie(self):
        await self.act(self.first)
        return await self.act(self.second)


@pytest.mark.parametrize("receivers", [0, 2])
def test_a_second_announcement_of_another_size_names_its_author_and_harms_nobody(serving, receivers):
    local = serving(receivers=receivers)
    lying = THREADS.submit(asyncio.run, TwoTongues(local).lie())
    local.server.wait(lambda there: LIAR in there, HANG)
    everyone = (*HONEST, LIAR)
    assert local.ask(to_all(Begin(PARAMETERS), everyone)).keys() == set(everyone)
    total, garbled = np.zeros(COUNT, np.uint32), set()
    for u, reply in local.server.perform(local.server.exchange(to_all(Contribute(0), everyone))):
        if isinstance(reply, Garbled):
            garbled.add(u)
        else:
            add_packed(total, reply.vector, BITS)
    lying.result(HANG)
    assert garbled == {LIAR}
    assert np.array_equal(total, expected(HONEST))
    assert all(remote.process.is_alive() for remote in local.server.uploads.remotes)


class Garbler(Answers):
    """Answer one kind of request with a message of another kind."""

    def handle(self, request):
        return PieceReceived(0) if isinstance(request, Begin) else super().handle(request)


def test_garbage_is_garbage_again_after_a_restart(serving, tmp_path):
    local = serving()
    local.join(LIAR, Garbler(LIAR), once=False)
    everyone = (*HONEST, LIAR)

    def begun():
        exchange = RecordedExchange(local.server.exchange, state)
        return dict(local.server.perform(exchange(to_all(Begin(PARAMETERS), everyone))))

    right = dict.fromkeys(HONEST, Joined()) | {LIAR: Garbled()}
    state = ServerState(tmp_path)
    assert begun() == right
    state.end()
    state = ServerState(tmp_path)
    assert begun() == right
    state.end()


class Ignored:
    """Uploads and blobs of an exchange that has none."""

    def begin(self):
        pass

    def merge(self, number):
        pass

    def forget(self, client, id):
        pass

    def offer(self, data):
        return Beside(len(data), bytes(32))

    def withdraw(self, digest):
        pass


STAGE, LATE, PIECES = 60.0, 59.0, 12


async def _sent_model(late):
    """Send twelve pieces of a model to two clients, of which one answers each just in time; return who has it, when."""
    loop, patience = asyncio.get_running_loop(), Patience(Deadlines(stage=STAGE, grace=STAGE))

    def send(u, message):
        asked = wire.decode(message, Asked)
        answer = Answered(asked.id, wire.encode(PieceReceived(0)))
        loop.call_later(
            late if u == LIAR else 1.0, lambda: asked.id in exchange._open[u] and exchange.answered(u, answer)
        )
        return True

    exchange = NetworkExchange(send, Ignored(), Ignored(), patience)
    exchange.note(invite_to(PARAMETERS))
    receiving = {1, LIAR}
    for piece in range(PIECES):
        replies = await exchange(dict.fromkeys(sorted(receiving), SendModel(piece, b"piece")))
        while exchange.is_waiting:
            await asyncio.sleep(0.5)
        receiving = {u for u, _ in replies}
        await asyncio.sleep(0)
    return receiving, loop.time()


def test_a_client_that_answers_just_in_time_costs_one_deadline_and_not_one_for_each_piece():
    receiving, seconds = run_virtually(_sent_model(LATE))
    assert receiving == {1}
    assert seconds < STAGE + 2.0 * PIECES


def test_a_client_that_is_slow_but_within_the_deadline_of_the_whole_model_gets_it():
    receiving, _ = run_virtually(_sent_model(STAGE / PIECES - 0.5))
    assert receiving == {1, LIAR}
