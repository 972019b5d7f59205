"""What answering costs a client is counted for it, and nothing else is."""

from functools import partial
from itertools import count

from dordis import wire
from dordis.protocol import Message
from dordis.simulation import metered
from dordis.simulation.exchange import nothing_lost
from dordis.simulation.metered import MeteredExchange


class Ask(Message, frozen=True):
    text: str = ""


class Tell(Message, frozen=True):
    text: str = ""


class Echo:
    def handle(self, request):
        return Tell(2 * request.text)


def test_bytes_and_seconds_of_every_answer_are_noted(monkeypatch):
    monkeypatch.setattr(metered, "thread_time", partial(next, count()))
    exchange = MeteredExchange({1: Echo(), 2: Echo()}, {Ask: Tell}, nothing_lost)
    assert dict(exchange({1: Ask("ab"), 2: Ask("c")})) == {1: Tell("abab"), 2: Tell("cc")}
    sizes = [(each.client, each.request, each.reply) for each in exchange.answered]
    assert sizes == [
        (u, len(wire.encode(Ask(text))), len(wire.encode(Tell(2 * text)))) for u, text in ((1, "ab"), (2, "c"))
    ]
    assert [each.seconds for each in exchange.answered] == [1, 1]
    assert exchange.seconds == 2


def test_what_is_lost_costs_nothing():
    exchange = MeteredExchange({1: Echo(), 2: Echo()}, {Ask: Tell}, lambda u, request: u == 1)
    assert dict(exchange(dict.fromkeys((1, 2), Ask("a")))) == {2: Tell("aa")}
    assert [each.client for each in exchange.answered] == [2]
