"""The exchange in memory: the codec on both ways, losses on cue, bytes counted, errors kept."""

import itertools
from typing import ClassVar

import msgspec
import pytest

from dordis import wire
from dordis.errors import DordisError, MalformedMessage, ProtocolError, UnusableUpdate
from dordis.protocol import Garbled, Message
from dordis.rounds.invitation import PieceReceived, SendModel
from dordis.simulation.exchange import LocalExchange


class Answer(Message, frozen=True):
    data: bytes


class Ask(Message, frozen=True):
    reply: ClassVar = Answer
    data: bytes


class Other(Message, frozen=True):
    pass


ASK = Ask(b"how much?")


class Echo:
    """A client that keeps what it sees and says."""

    def __init__(self):
        self.seen, self.said = [], []

    def handle(self, request):
        self.seen.append(request)
        self.said.append(Answer(request.data * 2))
        return self.said[-1]


class Says:
    """A client that answers always the same, or raises it."""

    def __init__(self, what):
        self._what = what

    def handle(self, request):
        if isinstance(self._what, Exception):
            raise self._what
        return self._what


def three():
    return {u: Echo() for u in (1, 2, 3)}


def ask(*clients):
    return dict.fromkeys(clients, ASK)


def test_replies_come_from_everyone_asked_and_from_nobody_else():
    exchange = LocalExchange(three())
    assert list(exchange(ask(1, 3))) == [(1, Answer(ASK.data * 2)), (3, Answer(ASK.data * 2))]


def test_both_sides_see_an_equal_but_not_the_same_object():
    clients = three()
    replies = dict(LocalExchange(clients)(ask(1, 2)))
    for u in (1, 2):
        assert clients[u].seen == [ASK]
        assert clients[u].seen[0] is not ASK
        assert replies[u] == clients[u].said[0]
        assert replies[u] is not clients[u].said[0]
    assert clients[1].seen[0] is not clients[2].seen[0]


def test_clients_are_asked_only_as_their_replies_are_taken():
    clients = three()
    replies = LocalExchange(clients)(ask(1, 2, 3))
    assert not clients[1].seen
    next(replies)
    assert clients[1].seen
    assert not clients[2].seen


def test_a_lost_request_never_arrives_and_costs_nothing():
    clients = three()
    exchange = LocalExchange(clients, lost_request=lambda u, request: u == 2 and request == ASK)
    assert [u for u, _ in exchange(ask(1, 2, 3))] == [1, 3]
    assert not clients[2].seen
    assert 2 not in exchange.received
    assert 2 not in exchange.sent


def test_a_lost_reply_was_sent_but_does_not_arrive():
    clients = three()
    exchange = LocalExchange(clients, lost_reply=lambda u, request: u == 2 and request == ASK)
    assert [u for u, _ in exchange(ask(1, 2, 3))] == [1, 3]
    assert clients[2].said
    assert exchange.sent[2] == exchange.sent[1]
    assert not exchange.errors


def test_bytes_are_those_on_the_wire_and_add_up():
    exchange = LocalExchange(three())
    for _ in range(2):
        list(exchange(ask(1, 2)))
    list(exchange({1: Ask(b"")}))
    assert exchange.received == {
        1: 2 * len(wire.encode(ASK)) + len(wire.encode(Ask(b""))),
        2: 2 * len(wire.encode(ASK)),
    }
    assert exchange.sent[2] == 2 * len(wire.encode(Answer(ASK.data * 2)))


def test_equal_requests_to_different_clients_are_each_counted():
    exchange = LocalExchange(three())
    list(exchange({1: Ask(b"abc"), 2: Ask(b"abcdef"), 3: Ask(b"abc")}))
    assert exchange.received[1] == exchange.received[3] == exchange.received[2] - 3


def test_a_client_that_raises_does_not_answer_and_its_error_is_kept():
    error = ProtocolError("no")
    exchange = LocalExchange({**three(), 2: Says(error)})
    assert [u for u, _ in exchange(ask(1, 2, 3))] == [1, 3]
    assert exchange.errors == [(2, error)]
    assert 2 not in exchange.sent
    assert exchange.received[2] == len(wire.encode(ASK))


def test_an_error_that_is_a_bug_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        list(LocalExchange({1: Says(ZeroDivisionError())})(ask(1)))


@pytest.mark.parametrize("what", [Other(), ASK, msgspec.Raw(b""), msgspec.Raw(b"\xc1"), 5, None, [Answer(b"")]])
def test_an_answer_that_is_not_the_kind_expected_arrives_as_garbled_and_the_error_is_kept(what):
    exchange = LocalExchange({**three(), 2: Says(what)})
    assert [u for u, reply in exchange(ask(1, 2, 3)) if reply != Garbled()] == [1, 3]
    ((u, error),) = exchange.errors
    assert u == 2
    assert isinstance(error, MalformedMessage)
    assert isinstance(error, DordisError)


def test_a_client_that_is_not_there_does_not_answer():
    exchange = LocalExchange(three())
    assert [u for u, _ in exchange(ask(1, 9))] == [1]
    assert 9 not in exchange.received


class AskAhead(Ask, frozen=True):
    ahead: ClassVar[bool] = True


def test_requests_to_work_ahead_are_delivered_only_on_demand():
    """All clients of the process would hold what they made at once."""
    for wanted in (False, True):
        clients = three()
        exchange = LocalExchange(clients, ahead=wanted)
        replies = list(exchange(dict.fromkeys(clients, AskAhead(b"soon"))))
        assert len(replies) == len(exchange.received) == (3 if wanted else 0)


def test_the_bytes_of_a_model_are_counted_apart():
    clients = {u: Says(PieceReceived(0)) for u in (1, 2)}
    exchange = LocalExchange(clients)
    piece = SendModel(0, bytes(1000))
    list(exchange({1: piece, 2: ASK}))
    assert exchange.kinds["SendModel"] == wire.size(piece) == exchange.received[1]
    assert exchange.kinds.total() == exchange.received.total()


def test_an_update_that_cannot_be_used_is_a_mistake_of_the_application_and_raised():
    with pytest.raises(UnusableUpdate, match="nothing"):
        list(LocalExchange({1: Says(UnusableUpdate("nothing"))})(ask(1)))


def test_the_cpu_seconds_of_answers_are_those_of_the_client_and_what_is_lost_costs_nothing(monkeypatch):
    readings = itertools.count()
    monkeypatch.setattr("dordis.simulation.exchange.thread_time", lambda: float(next(readings)))
    clients = three() | {2: Says(ProtocolError("no"))}
    exchange = LocalExchange(clients, lost_request=lambda u, _: u == 3)
    assert list(dict(exchange(ask(1, 2, 3)))) == [1]
    assert list(dict(exchange(ask(1)))) == [1]
    assert exchange.seconds == {1: 2.0, 2: 1.0}
