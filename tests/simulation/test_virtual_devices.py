"""Virtual time: jumps, never waits, never hangs; transfers, processors and queues take what they must."""

import asyncio
import time
from fractions import Fraction

import numpy as np
import pytest

from dordis.pipeline.executor import execute_async
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import Message
from dordis.protocols.cohort import agree_on
from dordis.simulation.virtual_devices import (
    NOTHING_CAME,
    Delivery,
    Device,
    Real,
    ServerProcessor,
    VirtualExchange,
    VirtualLoop,
    heterogeneous,
    run_virtually,
)
from tests.protocols.rounds import Round, random_inputs


class Ask(Message, frozen=True):
    number: int = 0


def now():
    return asyncio.get_running_loop().time()


def busy(seconds):
    """Compute until this thread has used so many seconds of the processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_hundred_days_pass_at_once():
    async def main():
        await asyncio.sleep(100 * 86400)
        return now()

    assert run_virtually(main()) == pytest.approx(100 * 86400)


def test_timers_fire_in_order_whatever_order_they_were_set_in():
    order = []

    async def wake(after):
        await asyncio.sleep(after)
        order.append((after, round(now(), 6)))

    async def main():
        await asyncio.gather(*(wake(after) for after in (3.0, 1.0, 2.0, 1.0)))

    run_virtually(main())
    assert order == [(1.0, 1.0), (1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]


def test_computing_takes_no_virtual_time():
    async def main():
        busy(0.01)
        await asyncio.sleep(0)
        return now()

    assert run_virtually(main()) == 0


def test_waiting_for_what_can_never_happen_is_an_error_and_not_a_hang():
    closed = []

    async def main():
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="cannot advance"):
        run_virtually(main())
    assert closed == [True]


def test_timeouts_work_in_virtual_time():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        return now()

    assert run_virtually(main()) == pytest.approx(5)


def test_the_loop_begins_at_zero_and_can_be_closed():
    loop = VirtualLoop()
    assert loop.time() == 0
    loop.close()


def exchange_of(devices, received=0, seconds=0.0, sent=0):
    return VirtualExchange(devices, lambda u, request: Delivery(request, received, seconds, sent))


def test_a_round_trip_is_transfers_latencies_and_computation():
    async def main():
        exchange = exchange_of({1: Device(8e6, latency=0.1, slowness=2.0)}, received=10**6, seconds=3.0, sent=2 * 10**6)
        assert await exchange({1: Ask()}) == [(1, Ask())]
        return now()

    assert run_virtually(main()) == pytest.approx(1 + 0.1 + 6 + 2 + 0.1)


def test_replies_come_in_the_order_of_their_arrival_and_the_last_decides():
    async def main():
        devices = {1: Device(1e6, slowness=3.0), 2: Device(1e6, slowness=1.0), 3: Device(1e6, slowness=2.0)}
        replies = await exchange_of(devices, seconds=1.0)(dict.fromkeys((1, 2, 3), Ask()))
        return [u for u, _ in replies], now()

    assert run_virtually(main()) == ([2, 3, 1], pytest.approx(3.0))


def test_a_client_does_one_thing_at_a_time_in_order():
    ended = []

    async def ask(exchange, number):
        await exchange({1: Ask(number)})
        ended.append((number, round(now(), 6)))

    async def main():
        exchange = exchange_of({1: Device(8e6)}, received=10**6, seconds=5.0, sent=10**6)
        await asyncio.gather(*(ask(exchange, number) for number in range(3)))

    run_virtually(main())
    assert ended == [(0, 7.0), (1, 12.0), (2, 17.0)]  # computing is the bottleneck: transfers hide behind it


def test_a_second_worker_handles_a_short_request_beside_a_long_one():
    def deliver(u, request):
        return Delivery(request, 0, float(request.number), 0)

    async def main(workers):
        exchange = VirtualExchange({1: Device(1e6, workers=workers)}, deliver)
        long = asyncio.create_task(exchange({1: Ask(10)}))
        await asyncio.sleep(1)
        await exchange({1: Ask(1)})
        ended = now()
        await long
        return ended, now()

    assert run_virtually(main(1)) == pytest.approx((11, 11))
    assert run_virtually(main(2)) == pytest.approx((2, 10))


def test_a_client_that_is_gone_does_not_keep_the_server_waiting():
    async def main():
        exchange = VirtualExchange({1: Device(1e6), 2: Device(1e6)}, lambda u, _: Delivery(None, 0, 0.0, 0))
        assert await exchange(dict.fromkeys((1, 2), Ask())) == []
        return now()

    assert run_virtually(main()) == 0


def test_the_server_does_one_thing_at_a_time():
    class Meter:
        seconds = 0.0

        def __call__(self):
            return self.seconds

        def work(self):
            self.seconds += 2.0
            return "done"

    async def main():
        meter = Meter()
        server = ServerProcessor(meter)
        assert await asyncio.gather(server(meter.work), server(meter.work)) == ["done", "done"]
        return now()

    assert run_virtually(main()) == pytest.approx(4.0)


def test_the_server_s_own_seconds_are_measured():
    async def main():
        await ServerProcessor()(lambda: busy(0.01))
        return now()

    began = time.thread_time()
    assert 0.01 <= run_virtually(main()) <= time.thread_time() - began


def test_devices_are_the_paper_s():
    devices = heterogeneous(range(100), seed=1)
    bandwidths = sorted(device.bandwidth / 1e6 for device in devices.values())
    slownesses = sorted((device.slowness for device in devices.values()), reverse=True)
    assert bandwidths[0] == pytest.approx(21)
    assert bandwidths[1] == pytest.approx(21 * 2**1.2)
    assert bandwidths[-1] == pytest.approx(210)
    assert slownesses == pytest.approx([i**-1.2 for i in range(1, 101)])
    assert devices == heterogeneous(range(100), seed=1)
    assert devices != heterogeneous(range(100), seed=2)
    by_bandwidth = sorted(devices, key=lambda u: devices[u].bandwidth)
    assert by_bandwidth != sorted(devices, key=lambda u: -devices[u].slowness)


def secagg(m):
    p = agree_on(
        run=bytes(32), index=0, clients=range(1, 7), threshold=3, tolerance=2, bits=20,
        ends=np.cumsum([50] * m).tolist(), scheme=Scheme.SINGLE, variances=[Fraction(40)] * m,
    )  # fmt: skip
    return Round(p, random_inputs(p, 0), [(2, "CollectInput", 0), (5, "Unmask", m - 1)])


def virtually(session, deliver, meter=time.thread_time):
    devices = heterogeneous(session.parameters.clients, seed=1)
    steps = session.server.setup.workflow, [chunk.workflow for chunk in session.server.chunks]
    return run_virtually(execute_async(*steps, VirtualExchange(devices, deliver), ServerProcessor(meter)))


def charged(session, cost):
    real = Real(session.exchange)

    def deliver(u, request):
        found = real(u, request)
        return found if found is NOTHING_CAME else found._replace(seconds=cost(request))

    return deliver


@pytest.mark.parametrize("m", [1, 3])
def test_real_machines_in_virtual_time_give_the_plaintext_sum(m):
    session = secagg(m)
    timeline = virtually(session, Real(session.exchange))
    outputs = session.server.output()
    for output, total in zip(outputs, session.expected(outputs), strict=True):
        assert np.array_equal(output.total, total)
    assert 2 not in outputs[0].survivors
    assert timeline.completion > 0


def test_real_machines_under_a_cost_model_take_the_same_time_every_time():
    def cost(request):
        return 2.0 if type(request).__name__ == "CollectInput" else 0.1

    def play():
        session = secagg(3)
        return virtually(session, charged(session, cost), lambda: 0.0)

    first = play()
    assert first == play()
    uploads = [span for span in first.spans if span.step == "collect_inputs"]
    assert [span.end - span.start for span in uploads] == pytest.approx([2.0] * 3, rel=0.2)


def test_a_request_that_is_lost_costs_a_real_client_nothing_and_a_lost_reply_its_work():
    p = secagg(1).parameters
    request = [(2, "AdvertiseKeys", -1)]
    sessions = [Round(p, random_inputs(p, 0), request), Round(p, random_inputs(p, 0), [], request)]

    async def ask(session):
        (step, *_) = session.server.setup.workflow
        asked = next(step.run())
        replies = await VirtualExchange({2: Device(1e6)}, charged(session, lambda _: 5.0))({2: asked[2]})
        assert replies == []
        return now()

    assert run_virtually(ask(sessions[0])) == 0
    assert run_virtually(ask(sessions[1])) > 5
