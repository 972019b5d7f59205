"""Whoever watches a round is told who is asked, who answers, and who is missing, in the order in which it happens."""

import asyncio

from dordis.protocol import Garbled
from dordis.protocols.secagg.messages import Unmask, Unmasking
from dordis.rounds.watch import ClientAnswered, StageBegan, StageEnded, WatchedExchange


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
