"""Delivery: clients decode a sum as the server does; lost or lying clients affect no others."""

import numpy as np
import pytest

from dordis.errors import Aborted, InputError, ParametersRefused, ProtocolError, UnexpectedRequest
from dordis.kernels.ring import pack
from dordis.pipeline import executor as drive
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.central_and_local_noise import CentralGaussian, NoMechanism
from dordis.protocol import Resource, reply_to
from dordis.protocols.cohort import agree_on
from dordis.protocols.delivery import (
    DeliveryClient,
    DeliveryServer,
    Dispatch,
    Received,
    Store,
    Stored,
)
from dordis.protocols.encoded_sums import DistributedDP, encoding_of
from dordis.protocols.noise_addition_and_removal import ChunkOutput
from dordis.simulation.exchange import LocalExchange

DIM, BLOCK, BITS = 50, 8, 20
N, T = 6, 2
GRID = Grid(DIM, BLOCK, 100.0, BITS)


def agreed(mechanism):
    return agree_on(
        run=bytes(32), index=0, clients=range(N), threshold=4, tolerance=T, bits=BITS, ends=[16, 40, 56],
        encoding=encoding_of(mechanism, bytes(range(32))),
    )  # fmt: skip


P = agreed(NoMechanism(GRID))
DP = DistributedDP.from_parameters(P, DIM)
WHOLE = np.random.default_rng(3).integers(0, 2**BITS, P.dim, dtype=np.uint32)
COUNTS = (N, N - 1, N - T)
SUMS = [ChunkOutput.from_plan(P, k, WHOLE[P.chunks[k]], P.clients[:count], {}) for k, count in enumerate(COUNTS)]
EXPECTED = DP.decode(SUMS)


def dispatch(chunk, **changes):
    fields = {"survivors": len(SUMS[chunk].survivors), "vector": pack(SUMS[chunk].total, BITS).tobytes()}
    return Dispatch(chunk, **(fields | changes))


def finished(client):
    for chunk in (1, 2, 0):
        client.handle(dispatch(chunk))
    for chunk in (2, 0, 1):
        client.handle(Store(chunk))
    return client


def servers(receivers=P.clients):
    return [DeliveryServer(DP, chunk, lambda k=chunk: SUMS[k], lambda: receivers) for chunk in range(3)]


def listed(*losses):
    return lambda u, request: (u, type(request), request.chunk) in losses


def check_aggregate(aggregate):
    assert np.array_equal(aggregate.total, EXPECTED.total)
    assert np.array_equal(aggregate.mean, EXPECTED.mean)
    assert aggregate.survivors == EXPECTED.survivors == (N, N - 1, N - T)


def test_the_aggregate_is_there_when_all_chunks_are_stored_in_whatever_order():
    client = DeliveryClient(DP)
    for chunk in (2, 0, 1):
        assert client.aggregate is None
        assert client.handle(dispatch(chunk)) == Received(chunk)
    for chunk in (1, 2, 0):
        assert client.aggregate is None
        assert client.handle(Store(chunk)) == Stored(chunk)
    check_aggregate(client.aggregate)


def test_it_stays_when_the_client_has_left():
    client = finished(DeliveryClient(DP))
    check_aggregate(client.aggregate)
    client.close()
    check_aggregate(client.aggregate)


def test_chunks_decoded_one_by_one_are_what_the_whole_is():
    decoded = [DP.decode_chunk(k, output.total, len(output.survivors)) for k, output in enumerate(SUMS)]
    check_aggregate(DP.assemble(decoded))
    with pytest.raises(InputError, match="3 chunks, not 2"):
        DP.assemble(decoded[:2])
    with pytest.raises(InputError, match="16 coordinates, not 24"):
        DP.decode_chunk(0, SUMS[1].total, N)


def test_a_mechanism_with_noise_at_the_end_is_not_delivered_without_it():
    mechanism = CentralGaussian(GRID, clip=1.0, sensitivity=10**6, sigma=1.0)
    private = DistributedDP(agreed(mechanism), mechanism)
    with pytest.raises(ParametersRefused, match="whole vectors only"):
        private.decode_chunk(0, SUMS[0].total, N)
    client = DeliveryClient(private)
    client.handle(dispatch(0))
    with pytest.raises(ParametersRefused, match="whole vectors only"):
        client.handle(Store(0))


# The client's order


def test_the_same_request_gets_the_same_answer():
    client = DeliveryClient(DP)
    for request in (dispatch(0), dispatch(0), Store(0), Store(0), dispatch(0)):
        assert client.handle(request).chunk == 0


def test_storing_what_has_not_come_is_refused():
    client = DeliveryClient(DP)
    with pytest.raises(UnexpectedRequest, match="turn"):
        client.handle(Store(0))
    with pytest.raises(Aborted):
        client.handle(dispatch(0))


@pytest.mark.parametrize("stored", [False, True])
def test_another_sum_of_the_same_chunk_is_refused(stored):
    client = DeliveryClient(DP)
    client.handle(dispatch(0))
    if stored:
        client.handle(Store(0))
    with pytest.raises(UnexpectedRequest, match="another request"):
        client.handle(dispatch(0, vector=pack(SUMS[0].total ^ 1, BITS).tobytes()))


@pytest.mark.parametrize("survivors", [-1, 0, 1, N - T - 1, N + 1])
def test_a_sum_over_fewer_or_more_clients_than_can_be_is_refused(survivors):
    with pytest.raises(ProtocolError, match="a sum of this round is over"):
        DeliveryClient(DP).handle(dispatch(0, survivors=survivors))


@pytest.mark.parametrize("chunk", [-1, 3])
def test_a_chunk_that_does_not_exist_is_refused(chunk):
    with pytest.raises(UnexpectedRequest):
        DeliveryClient(DP).handle(Dispatch(chunk, N, b""))


def test_a_malformed_sum_is_refused():
    for vector in (b"short", bytes(1 << 20)):
        with pytest.raises(ProtocolError, match="bytes"):
            DeliveryClient(DP).handle(dispatch(0, vector=vector))


# The server


def test_the_steps_keep_the_downlink_and_then_the_clients_busy():
    assert [step.resource for step in servers()[0].workflow] == [Resource.DOWNLINK, Resource.CLIENT]


def test_everybody_gets_any_sum():
    clients = {u: DeliveryClient(DP) for u in P.clients}
    for server in servers():
        assert drive.run(server, LocalExchange(clients)) == P.clients
    for client in clients.values():
        check_aggregate(client.aggregate)


def test_whoever_is_lost_is_not_asked_to_store_and_harms_nobody():
    clients = {u: DeliveryClient(DP) for u in P.clients}
    exchange = LocalExchange(clients, listed((0, Dispatch, 0), (1, Store, 1)), listed((2, Dispatch, 0)))
    stored = [drive.run(server, exchange) for server in servers()]
    assert stored == [(1, 3, 4, 5), (0, 2, 3, 4, 5), P.clients]
    assert not exchange.errors
    assert [u for u, client in clients.items() if client.aggregate is None] == [0, 1, 2]


def test_all_may_be_lost():
    assert drive.run(servers()[0], LocalExchange({})) == ()


def test_nothing_is_sent_where_nobody_is_to_have_it():
    def exchange(requests):
        raise AssertionError

    assert drive.run(servers(receivers=())[0], exchange) == ()


def test_a_reply_for_another_chunk_or_from_elsewhere_does_not_count():
    def exchange(requests):
        kind = reply_to(next(iter(requests.values())))
        yield 0, kind(1)
        yield 99, kind(0)
        yield 1, AssertionError()
        yield 2, kind(0)

    assert drive.run(servers()[0], exchange) == (2,)
