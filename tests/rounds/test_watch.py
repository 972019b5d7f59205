"""Whoever watches a round is told who is asked, who answers, and who is missing, in the order in which it happens."""

import asyncio

from dordis.protocol import Garbled
from dordis.protocols.secagg.messages import Unmask, Unmasking
from dordis.rounds.invitation import SendModel, SendSum, Train
from dordis.rounds.watch import ClientAnswered, MessageMeter, StageBegan, StageEnded, Traffic, WatchedExchange


def exchange_of(replies):
    async def exchange(requests):
        return iter(replies)

    return exchange


def test_answers_are_reported_as_they_come_and_missing_clients_at_the_end():
    events = []
    request, reply = Unmask(2, b"", {}), Unmasking(2, b"", b"", {})
    watched = WatchedExchange(exchange_of([(3, reply), (1, reply), (4, Garbled())]), events.append)
    replies = asyncio.run(watched(dict.fromkeys((1, 2, 3, 4), request)))
    assert events == [StageBegan("Unmask", (1, 2, 3, 4), 2)]
    assert next(replies)[0] == 3
    assert events[1:] == [ClientAnswered("Unmask", 3, 2)]
    assert [u for u, _ in replies] == [1, 4]
    assert events[2:] == [ClientAnswered("Unmask", 1, 2), StageEnded("Unmask", (2, 4), 2)]
    assert watched.dropped((1, 2, 3, 4), refused=(4,)) == {"Unmask": (2,), "refused": (4,)}


def test_bytes_are_counted_by_client_direction_and_kind():
    meter = MessageMeter()
    for kind, size in ((SendModel, 100), (SendSum, 10), (Train, 1)):
        meter.count_request(1, kind, size)
    meter.count_request(2, SendModel, 1000)
    meter.count_reply(2, 5)
    assert meter.received == {1: 111, 2: 1000}
    assert meter.sent == {2: 5}
    assert meter.traffic() == Traffic(up=5, down=1111, models=1100, sums=10)


def test_meters_are_added():
    meter, other = MessageMeter(), MessageMeter()
    meter.count_request(1, Train, 1)
    other.count_request(1, Train, 2)
    other.count_reply(3, 4)
    meter.add(other)
    assert (meter.received, meter.sent) == ({1: 3}, {3: 4})


def test_the_difference_of_what_is_not_counted_is_not_counted():
    assert Traffic(5, None, 1, None).since(Traffic(1, 2, None, None)) == Traffic(4, None, None, None)
