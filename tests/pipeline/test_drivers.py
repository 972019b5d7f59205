"""The drivers, sync and async: every step in order, every request delivered, replies taken one by one."""

import asyncio

import pytest

from dordis.errors import TooFewClients
from dordis.pipeline import executor as drive
from dordis.pipeline.executor import execute_async
from dordis.protocol import Message, ProtocolServer, Resource, Step


class Ask(Message, frozen=True):
    number: int


class Answer(Message, frozen=True):
    number: int


class Server(ProtocolServer[list]):
    """A server whose steps are given as functions of itself."""

    def __init__(self, *steps):
        self._steps = steps
        self.log = []

    @property
    def workflow(self):
        return [Step(lambda step=step: step(self), Resource.SERVER) for step in self._steps]

    def output(self):
        return self.log


class Exchange:
    """Clients 1, 2 and 3 answer with ten times the number; what is delivered and when is kept."""

    def __init__(self, log):
        self.log = log
        self.delivered = []

    def __call__(self, requests):
        for u, request in requests.items():
            self.delivered.append((u, request.number))
            self.log.append(("made", u))
            yield u, Answer(10 * request.number)

    async def later(self, requests):
        await asyncio.sleep(0)
        return self(requests)

    async def at_once(self, requests):
        return list(self(requests))


def ask(number):
    return dict.fromkeys((1, 2, 3), Ask(number))


def sums(server):
    replies = yield ask(1)
    server.log.append(sum(reply.number for _, reply in replies))


def asks_twice(server):
    first = yield ask(2)
    numbers = [reply.number for _, reply in first]
    second = yield ask(sum(numbers))
    server.log.append([u for u, _ in second])


def computes(server):
    server.log.append("computed")


def yields_nothing(server):
    server.log.append("began and ended")
    if server is None:
        yield {}


def ignores_replies(server):
    yield ask(4)


def ignores_all_but_the_first(server):
    replies = yield ask(5)
    server.log.append(next(iter(replies)))
    yield ask(6)


def stops_early(server):
    for _ in (yield ask(7)):
        return


def fails(server):
    for u, _ in (yield ask(8)):
        raise TooFewClients("this stage", u, 2)


def asks_nobody(server):
    server.log.append(list((yield {})))


STEPS = [sums, computes, asks_twice, yields_nothing, ignores_replies, ignores_all_but_the_first, asks_nobody, sums]


def run_sync(*steps):
    server = Server(*steps)
    exchange = Exchange(server.log)
    return drive.run(server, exchange), exchange.delivered


def run_async(*steps, at_once=False):
    server = Server(*steps)
    exchange = Exchange(server.log)
    asyncio.run(execute_async(server.workflow, [], exchange.at_once if at_once else exchange.later))
    return server.output(), exchange.delivered


def test_sync_and_async_give_the_same():
    assert run_sync(*STEPS) == run_async(*STEPS)
    assert run_sync(*STEPS)[1] == run_async(*STEPS, at_once=True)[1]


def test_steps_run_in_order_and_the_output_comes_last():
    output, _ = run_sync(computes, sums, computes)
    assert [entry for entry in output if not isinstance(entry, tuple)] == ["computed", 30, "computed"]


@pytest.mark.parametrize("runner", [run_sync, run_async])
@pytest.mark.parametrize("step", [computes, yields_nothing])
def test_a_step_that_yields_no_requests_delivers_none(runner, step):
    output, delivered = runner(step)
    assert delivered == []
    assert len(output) == 1


@pytest.mark.parametrize("runner", [run_sync, run_async])
def test_an_exchange_may_have_nobody_to_deliver_to(runner):
    assert runner(asks_nobody) == ([[]], [])


@pytest.mark.parametrize("runner", [run_sync, run_async])
@pytest.mark.parametrize(("step", "numbers"), [(ignores_replies, [4]), (ignores_all_but_the_first, [5, 6])])
def test_every_request_is_delivered_though_its_reply_is_ignored(runner, step, numbers):
    _, delivered = runner(step)
    assert delivered == [(u, number) for number in numbers for u in (1, 2, 3)]


@pytest.mark.parametrize("runner", [run_sync, run_async])
def test_every_request_is_delivered_though_the_flow_ends_at_the_first_reply(runner):
    _, delivered = runner(stops_early)
    assert delivered == [(1, 7), (2, 7), (3, 7)]


@pytest.mark.parametrize("runner", [run_sync, run_async])
def test_requests_left_over_are_delivered_before_the_next_ones(runner):
    _, delivered = runner(ignores_all_but_the_first)
    assert [number for _, number in delivered] == [5, 5, 5, 6, 6, 6]


@pytest.mark.parametrize("runner", [run_sync, run_async])
def test_replies_are_made_as_the_server_takes_them(runner):
    def watches(server):
        for u, _ in (yield ask(9)):
            server.log.append(("taken", u))

    output, _ = runner(watches)
    assert output == [(what, u) for u in (1, 2, 3) for what in ("made", "taken")]


@pytest.mark.parametrize("runner", [run_sync, run_async])
def test_a_failure_ends_the_round_there(runner):
    with pytest.raises(TooFewClients) as failure:
        runner(sums, fails, computes)
    assert failure.value.answered == 1


def test_some_steps_can_be_run_now_and_the_others_later():
    server = Server(sums, computes)
    exchange = Exchange(server.log)
    drive.advance(server.workflow[:1], exchange)
    assert server.log[-1] == 30
    drive.advance(server.workflow[1:], exchange)
    assert server.log[-1] == "computed"
