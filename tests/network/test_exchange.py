"""The exchange: requests and replies, deadlines, reconnections, refusals and announcements of uploads."""

import asyncio
from concurrent.futures import CancelledError

import aiohttp
import numpy as np
import pytest

from dordis import wire
from dordis.errors import BudgetRefused, ParametersRefused, UnexpectedRequest
from dordis.kernels.ring import add_packed
from dordis.network.deployment import explain_exclusions
from dordis.network.messages import BodyInfo, Reply
from dordis.protocol import Garbled
from dordis.protocols.delivery import Dispatch, Received, Store
from dordis.protocols.plaintext import Begin, Contribute, Contribution, Joined
from tests.network.local_server import ABSENT, HANG, PARAMETERS, SIZE, VECTORS, ScriptedParty, to_clients
from tests.network.proxies import FaultyProxy
from tests.network.raw_client import THREADS, RawClient
from tests.rounds.parties import invite_to

pytestmark = pytest.mark.network

HONEST, LIAR = (1, 2, 3), 4
BITS, COUNT = 32, SIZE // 4


@pytest.mark.parametrize("mutual", [True, False], ids=["mutual TLS", "challenge"])
def test_messages_and_vectors_go_there_and_back(serving, folder, mutual):
    local = serving(folder, mutual=mutual)
    parties = local.join_all(1, 2, 3)
    assert local.ask(to_clients(Begin(PARAMETERS))) == to_clients(Joined())
    vectors = {u: bytes(reply.vector) for u, reply in local.send(to_clients(Contribute(0)))}
    assert vectors == {u: VECTORS[u] for u in parties}
    total = np.random.default_rng(0).bytes(3 << 20)
    assert local.ask(to_clients(Dispatch(1, 7, total))) == to_clients(Received(1))
    assert all(bytes(party.asked[-1].vector) == total for party in parties.values())
    assert local.server.exchange.sent[1] > SIZE
    assert local.server.exchange.received[1] > len(total)


def test_a_client_that_declines_is_excluded_from_all_chunks_and_the_others_go_on(local):
    parties = local.join_all(1, 2, 3)
    parties[2]._fails = (Begin,)
    assert local.ask(to_clients(Begin(PARAMETERS))).keys() == {1, 3}
    ((u, error),) = local.server.exchange.errors
    assert u == 2
    assert "ParametersRefused" in str(error)
    assert "owner" not in str(error)
    assert local.ask(to_clients(Contribute(0))).keys() == {1, 3}
    assert len(parties[2].asked) == 1


def test_a_missed_deadline_excludes_a_client_from_all_chunks_until_the_next_round(serving, folder):
    """The silent client has requests for two chunks; the deadline of one ends both."""
    local = serving(folder, stages={"Dispatch": 0.01})
    parties = local.join_all(1, 2, 3)
    local.ask(to_clients(Begin(PARAMETERS)))
    parties[3]._holds = (Contribute, Dispatch)
    first = local.send(to_clients(Contribute(0)))
    assert next(first)[0] in (1, 2)
    assert parties[3].reached.wait(HANG)
    assert not local.ask({3: Dispatch(0, 7, b"sum")})
    assert {u for u, _ in first} <= {1, 2}
    assert local.ask(to_clients(Contribute(1))).keys() == {1, 2}
    parties[3].go.set()
    assert Contribute(1) not in parties[3].asked
    parties[3]._holds = ()
    local.begin_round()
    assert local.ask({3: Contribute(1)}).keys() == {3}


def test_a_request_is_repeated_when_its_client_reconnects(local):
    proxy = FaultyProxy(local.server.port)
    party = ScriptedParty(1, holds=(Contribute,))
    local.join(1, party, port=proxy.port, once=False)
    local.ask({1: Begin(PARAMETERS)})
    replies = local.send({1: Contribute(0)})
    assert party.reached.wait(HANG)
    proxy.cut()
    local.server.wait(lambda there: 1 not in there, HANG)
    party.go.set()
    ((u, reply),) = replies
    assert (u, bytes(reply.vector)) == (1, VECTORS[1])
    proxy.close()


def test_a_client_that_does_not_reconnect_is_excluded_after_the_grace_time(serving, folder):
    local = serving(folder, grace=0.0)
    proxy = FaultyProxy(local.server.port)
    party = ScriptedParty(1, holds=(Begin,))
    local.join(1, party, port=proxy.port)
    local.join(2, ScriptedParty(2))
    replies = local.send({1: Begin(PARAMETERS), 2: Begin(PARAMETERS)})
    assert party.reached.wait(HANG)
    proxy.close()
    assert [u for u, _ in replies] == [2]
    party.go.set()


def test_a_client_that_declines_a_delivery_is_not_named(local):
    """A client that was killed after it closed the round has no round when the request is repeated."""

    class Restarted(ScriptedParty):
        def handle(self, request):
            if isinstance(request, Store):
                raise UnexpectedRequest("Store came before an invitation")
            return super().handle(request)

    local.join(1, Restarted(1))
    assert local.ask(to_clients(Store(0), (1,))) == {}
    assert local.server.exchange.errors == []


class TwoTongues(RawClient):
    """Announce an upload, reconnect, announce it with another size, and send the first size."""

    async def first(self, _, session, socket):
        begun = await self.next_request(socket)
        await socket.send_bytes(wire.encode(Reply(begun.id, wire.encode(Joined()))))
        url = await self.announce(socket, 8)
        while (await self.status(session.head(url, headers=self.headers(), ssl=self.login.context))) != 200:
            await asyncio.sleep(0.05)  # the announcement travels on another connection

    async def second(self, _, session, socket):
        url = await self.announce(socket, SIZE)
        return await self.status(session.put(url, data=bytes(8), headers=self.headers(), ssl=self.login.context))

    async def announce(self, socket, size):
        asked = await self.next_request(socket)
        answer = Reply(
            asked.id, wire.encode(Contribution(0, b"")), BodyInfo(size, BodyInfo.from_upload(bytes(8)).digest)
        )
        await socket.send_bytes(wire.encode(answer))
        return f"https://localhost:{self.local.server.port}/vectors/{asked.id}"

    async def status(self, sent):
        try:
            async with sent as response:
                return response.status
        except (aiohttp.ClientError, OSError):
            return 0

    async def lie(self):
        await self.act(self.first)
        return await self.act(self.second)


def test_a_second_announcement_of_another_size_names_its_author_and_harms_nobody(local, monkeypatch):
    monkeypatch.setattr("dordis.network.upload_endpoint.ANNOUNCEMENT_DELAY", 0.2)
    for u in HONEST:
        local.join(u, ScriptedParty(u), once=False)
    lying = THREADS.submit(asyncio.run, TwoTongues(local, LIAR).lie())
    local.server.wait(lambda there: LIAR in there, HANG)
    everyone = (*HONEST, LIAR)
    assert local.ask(to_clients(Begin(PARAMETERS), everyone)).keys() == set(everyone)
    total, garbled = np.zeros(COUNT, np.uint32), set()
    for u, reply in local.send(to_clients(Contribute(0), everyone)):
        if isinstance(reply, Garbled):
            garbled.add(u)
        else:
            add_packed(total, reply.vector, BITS)
    lying.result(HANG)
    assert garbled == {LIAR}
    assert np.array_equal(total, np.sum([np.frombuffer(VECTORS[u], "<u4") for u in HONEST], axis=0, dtype=np.uint32))


def test_a_round_asks_for_nothing_more_once_the_server_stops(local):
    """Its next requests would be open when the server has given up all others, until their deadlines."""
    party = ScriptedParty(1, holds=(Begin,))
    local.join(1, party)
    replies = local.send({1: Begin(PARAMETERS)})
    assert party.reached.wait(HANG)

    async def close():
        local.server.exchange.close()

    local.server.perform(close())
    assert list(replies) == []
    with pytest.raises(CancelledError):
        local.send({1: Contribute(0)})
    party.go.set()


def test_the_server_says_that_a_client_declined_for_its_owners_budget(local, caplog):
    party = ScriptedParty(1)
    failures = [BudgetRefused(7.0, 6.0, 1e-5), ParametersRefused("something else")]

    def failing(request):
        raise failures.pop(0)

    party.handle = failing
    local.join(1, party)
    assert local.ask({1: Begin(PARAMETERS)}) == {}
    said = "client 1 declined: its owner's privacy budget does not cover this round"
    assert caplog.text.count(said) == 1
    local.server.perform(local.server.exchange({9: invite_to(PARAMETERS)})).close()  # the next round
    assert local.ask({1: Begin(PARAMETERS)}) == {}
    assert caplog.text.count(said) == 1


def test_the_reason_of_each_exclusion_is_kept_until_the_next_round(serving, folder):
    local = serving(folder, stages={"Dispatch": 0.01}, grace=0.0)
    parties, proxy = {u: ScriptedParty(u) for u in (1, 2, 3)}, FaultyProxy(local.server.port)
    parties[1]._fails, parties[2]._holds, parties[3]._holds = (Begin,), (Dispatch,), (Begin,)
    for u, party in parties.items():
        local.join(u, party, port=proxy.port if u == 3 else 0)
    begun = local.send(to_clients(Begin(PARAMETERS)))
    assert parties[3].reached.wait(HANG)
    proxy.close()
    assert [u for u, _ in begun] == [2]
    assert local.ask({2: Dispatch(0, 7, b"sum")}) == {}
    exclusions = {1: "ParametersRefused", 2: "too slow", 3: "disconnected"}
    assert local.server.exchange.exclusions == exclusions
    explanation = explain_exclusions(exclusions)
    assert "1 client missed a deadline: raise deployment.deadlines" in explanation
    for party in parties.values():
        party.go.set()
    local.begin_round()
    assert local.server.exchange.exclusions.keys() <= {ABSENT}
