"""A server and its clients over TLS on loopback: who is let in, what is asked and answered, and who is out when."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from aiohttp import web

from dordis.errors import InputError, LoginRefused, ParametersRefused
from dordis.federation.authority import Authority
from dordis.network import messages
from dordis.network.bulk import pieces_of
from dordis.network.transfers import TRIES
from dordis.protocols.delivery import Dispatch, Received
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.plaintext.messages import Begin, Contribute, Contribution, Joined
from dordis.rounds.client import Client
from dordis.rounds.invitation import Train
from tests.federation.parties import joined
from tests.network.federation import enrol, publish
from tests.network.local import HANG, LocalServer
from tests.network.relay import Relay
from tests.rounds.parties import DIM, Diarist, Witness, agreed, invite_to

pytestmark = pytest.mark.network

PARAMETERS = agreed(chunks=2)
SIZE = 4 * PARAMETERS.chunks[0].stop
VECTORS = {u: np.arange(SIZE // 4, dtype="<u4").tobytes()[: SIZE - 4] + bytes([u, 0, 0, 0]) for u in range(1, 5)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return enrol(tmp_path_factory.mktemp("federation"), 4)


@pytest.fixture
def serving():
    """Start servers that are closed in the end, however a test ends."""
    servers = []

    def start(folder, **options):
        servers.append(LocalServer(folder, **{"stage": HANG, "train": HANG, "grace": HANG} | options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def local(serving, folder):
    return serving(folder)


class Answers:
    """A client that answers at once, except to what it holds; it remembers what it was asked."""

    def __init__(self, u, holds=(), fails=()):
        self.u, self.asked = u, []
        self._holds, self._fails = holds, fails
        self.reached, self.go = threading.Event(), threading.Event()

    def handle(self, request):
        self.asked.append(request)
        if isinstance(request, tuple(self._holds)):
            self.reached.set()
            self.go.wait(HANG)
        if isinstance(request, tuple(self._fails)):
            raise ParametersRefused("my owner says no")
        match request:
            case Begin():
                return Joined()
            case Contribute():
                return Contribution(request.chunk, VECTORS[self.u])
            case Dispatch():
                return Received(request.chunk)
        raise AssertionError(request)


def everyone(local, **options):
    parties = {u: Answers(u, **options) for u in (1, 2, 3)}
    for u, party in parties.items():
        local.join(u, party)
    return parties


def to_all(request, clients=(1, 2, 3)):
    return dict.fromkeys(clients, request)


@pytest.mark.parametrize("mutual", [True, False], ids=["mutual TLS", "challenge"])
def test_messages_and_vectors_go_there_and_back(serving, folder, mutual):
    local = serving(folder, mutual=mutual)
    parties = everyone(local)
    assert local.ask(to_all(Begin(PARAMETERS))) == to_all(Joined())
    vectors = {
        u: bytes(reply.vector) for u, reply in local.server.perform(local.server.exchange(to_all(Contribute(0))))
    }
    assert vectors == {u: VECTORS[u] for u in parties}
    total = np.random.default_rng(0).bytes(3 << 20)
    assert local.ask(to_all(Dispatch(1, 7, total))) == to_all(Received(1))
    assert all(bytes(party.asked[-1].vector) == total for party in parties.values())
    assert local.server.exchange.sent[1] > SIZE
    assert local.server.exchange.received[1] > len(total)


def test_a_client_works_on_one_chunk_while_the_sum_of_another_comes(local, monkeypatch):
    party, go, total = Answers(1), asyncio.Event(), bytes(3 << 20)

    async def held(data, start):
        await go.wait()
        async for piece in pieces_of(data, start):
            yield piece

    monkeypatch.setattr("dordis.network.server.pieces_of", held)
    local.join(1, party)
    local.ask({1: Begin(PARAMETERS)})
    coming = local.server.perform(local.server.exchange({1: Dispatch(1, 7, total)}))
    assert local.ask({1: Contribute(0)}).keys() == {1}
    assert not any(isinstance(request, Dispatch) for request in party.asked)
    local.server._loop.call_soon_threadsafe(go.set)
    assert dict(coming) == {1: Received(1)}
    assert isinstance(party.asked[-1], Dispatch)


def test_the_end_of_a_run_is_told(local):
    task = local.join(1, Answers(1))
    local.server.perform(local.server._close(over=True))
    assert task.result(HANG) is None


@pytest.mark.parametrize("failure", [MemoryError("the model has 16 GiB"), RuntimeError("secret"), RecursionError()])
def test_no_error_in_a_round_ends_a_client_or_says_more_than_that_it_declines(local, failure, caplog):
    party = Answers(1)
    answer, failures = party.handle, [failure]

    def failing(request):
        if failures:
            raise failures.pop()
        return answer(request)

    party.handle = failing
    task = local.join(1, party)
    assert local.ask({1: Begin(PARAMETERS)}) == {}
    ((_, error),) = local.server.exchange.errors
    assert str(error) == "the client declined: ''"
    assert "please report this" in caplog.text  # its owner is told, with what failed
    local.server.perform(local.server.exchange({9: invite_to(PARAMETERS)})).close()  # the next round
    assert local.ask({1: Begin(PARAMETERS)}) == {1: Joined()}
    assert not task.done()


def answer_uploads(monkeypatch, answer):
    """Have the server answer every upload so; return how often it does."""
    answered = []

    async def put(intake, request):
        answered.append(request)
        return answer(request)

    monkeypatch.setattr("dordis.network.intake.Intake.put", put)
    monkeypatch.setattr("dordis.network.transfers.FIRST_PAUSE", 0.001)
    return answered


def hang_up(request):
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize(
    "answer",
    [
        hang_up,
        *(
            lambda request, offset=offset: web.Response(status=416, headers={"Upload-Offset": offset})
            for offset in ("many", "-1", "1" * 5000, str(SIZE + 1), "0")
        ),
    ],
    ids=["no answer", "a word", "negative", "long", "beyond the end", "never further"],
)
def test_no_answer_to_an_upload_ends_a_client_or_keeps_it_busy(serving, folder, monkeypatch, answer):
    answered = answer_uploads(monkeypatch, answer)
    local = serving(folder, stage=2.0)
    task = local.join(1, Answers(1))
    assert local.ask({1: Begin(PARAMETERS)}) == {1: Joined()}
    assert local.ask({1: Contribute(0)}) == {}
    local.server.perform(local.server.exchange({9: invite_to(PARAMETERS)})).close()  # the next round
    assert local.ask({1: Begin(PARAMETERS)}) == {1: Joined()}
    assert not task.done()
    assert 1 <= len(answered) <= 2 * TRIES


def test_a_client_that_declines_is_out_for_all_chunks_and_the_others_go_on(local):
    parties = everyone(local)
    parties[2]._fails = (Begin,)
    assert local.ask(to_all(Begin(PARAMETERS))).keys() == {1, 3}
    ((u, error),) = local.server.exchange.errors
    assert u == 2
    assert "ParametersRefused" in str(error)
    assert "owner" not in str(error)
    assert local.ask(to_all(Contribute(0))).keys() == {1, 3}
    assert len(parties[2].asked) == 1


def test_whoever_misses_a_deadline_is_out_at_once_for_all_chunks_until_the_next_round(serving, folder):
    """The silent client is asked for both chunks; the deadline of one ends both, though the other's never passes."""
    local = serving(folder, stages={"Dispatch": 0.01})
    parties = everyone(local)
    local.ask(to_all(Begin(PARAMETERS)))
    parties[3]._holds = (Contribute, Dispatch)
    first = local.server.perform(local.server.exchange(to_all(Contribute(0))))
    assert next(first)[0] in (1, 2)
    assert parties[3].reached.wait(HANG)
    assert not local.ask({3: Dispatch(0, 7, b"sum")})
    assert {u for u, _ in first} <= {1, 2}
    assert local.ask(to_all(Contribute(1))).keys() == {1, 2}
    parties[3].go.set()
    assert Contribute(1) not in parties[3].asked
    parties[3]._holds = ()
    local.server.perform(local.server.exchange({9: invite_to(PARAMETERS)})).close()
    assert local.ask({3: Contribute(1)}).keys() == {3}


def test_a_client_whose_connection_breaks_is_asked_again_when_it_is_back(local):
    relay = Relay(local.server.port)
    party = Answers(1, holds=(Contribute,))
    local.join(1, party, port=relay.port, once=False)
    local.ask({1: Begin(PARAMETERS)})
    replies = local.server.perform(local.server.exchange({1: Contribute(0)}))
    assert party.reached.wait(HANG)
    relay.cut()
    local.server.wait(lambda there: 1 not in there, HANG)
    party.go.set()
    ((u, reply),) = replies
    assert (u, bytes(reply.vector)) == (1, VECTORS[1])
    relay.close()


def test_a_client_that_does_not_come_back_is_out_after_the_grace(serving, folder):
    local = serving(folder, grace=0.0)
    relay = Relay(local.server.port)
    party = Answers(1, holds=(Begin,))
    local.join(1, party, port=relay.port)
    local.join(2, Answers(2))
    replies = local.server.perform(local.server.exchange({1: Begin(PARAMETERS), 2: Begin(PARAMETERS)}))
    assert party.reached.wait(HANG)
    relay.close()
    assert [u for u, _ in replies] == [2]
    party.go.set()


def refused(local, name, party=None, **options):
    with pytest.raises((LoginRefused, InputError)) as refusal:
        local.stay(name, party or Answers(1), **options).result(HANG)
    return str(refusal.value)


def test_a_second_client_with_an_identity_in_use_is_refused_and_the_first_goes_on(local, caplog):
    everyone(local)
    assert "connected already" in refused(local, "c1")
    assert any("connected already" in record.message for record in caplog.records)
    assert local.ask(to_all(Begin(PARAMETERS))).keys() == {1, 2, 3}


@pytest.mark.parametrize("mutual", [True, False], ids=["mutual TLS", "challenge"])
def test_revoked_unknown_expired_and_foreign_identities_are_refused_and_others_go_on(serving, tmp_path, mutual, caplog):
    folder = enrol(tmp_path, 4)
    local = serving(folder, mutual=mutual)
    everyone(local)
    authority = Authority(folder / "authority", datetime.now(UTC))
    joined(authority, folder / "later.key")
    authority.revoke("c4", "left")
    publish(folder)
    past = Authority(folder / "authority", datetime.now(UTC) - timedelta(days=30))
    old = past.issue("c2", days=1).pem
    (tmp_path / "elsewhere").mkdir()
    enrol(tmp_path / "elsewhere", 1)
    (folder / "foreign.key").write_bytes((tmp_path / "elsewhere" / "c1.key").read_bytes())
    (folder / "foreign.key").chmod(0o600)
    (folder / "foreign.cert").write_bytes((tmp_path / "elsewhere" / "c1.cert").read_bytes())
    assert "revoked" in refused(local, "c4")
    assert "unknown" in refused(local, "later")
    assert refused(local, "foreign")
    before = len(caplog.records)
    (folder / "old.key").write_bytes((folder / "c2.key").read_bytes())
    (folder / "old.key").chmod(0o600)
    (folder / "old.cert").write_bytes(old)
    with pytest.raises((LoginRefused, InputError)):
        local.stay("old", Answers(2))
    assert len(caplog.records) >= before
    assert sum("refused" in record.message for record in caplog.records) >= 2
    assert local.ask(to_all(Begin(PARAMETERS))).keys() == {1, 2, 3}


def test_another_version_is_refused_in_the_handshake(local, monkeypatch, caplog):
    everyone(local)
    monkeypatch.setattr("dordis.network.client.SUBPROTOCOL", "dordis.9.9")
    reason = refused(local, "c4", Answers(4))
    assert messages.SUBPROTOCOL in reason
    assert any("another version" in record.message for record in caplog.records)
    assert local.ask(to_all(Begin(PARAMETERS))).keys() == {1, 2, 3}


def test_a_client_does_not_come_back_where_it_is_not_wanted(local):
    async def once():
        return await asyncio.sleep(0, "alive")

    refused(local, "c1", Answers(1), mutual=False)
    assert local.run(once()) == "alive"


class Leaving(Client):
    """A client that tells when it leaves a round."""

    def __init__(self, u):
        super().__init__(u, Diarist(np.zeros(DIM), []), Witness([]), PLAINTEXT)
        self.left = threading.Event()

    def close(self):
        super().close()
        if self.round is not None:
            self.left.set()


def test_a_round_in_which_nothing_is_asked_is_left(local):
    party = Leaving(1)
    local.join(1, party, silence=0.0)
    assert local.ask({1: invite_to(PARAMETERS)})[1].selected
    assert party.left.wait(HANG)
    assert local.ask({1: Train()}) == {}


@pytest.mark.parametrize("over", [True, False])
def test_a_round_is_left_when_the_run_is_over_and_not_when_its_server_is_stopped(folder, over):
    server, party = LocalServer(folder, stage=HANG, train=HANG, grace=HANG), Leaving(1)
    staying = server.join(1, party)
    assert server.ask({1: invite_to(PARAMETERS)})[1].selected
    server.server.stop(over=over)
    staying.result(HANG)
    assert party.left.is_set() is over
    server.server.stop = lambda: None
    server.close()
