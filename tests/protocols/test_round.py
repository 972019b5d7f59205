"""A whole round, put together from its parts: the paper's five stages, and one aggregate for server and clients."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dordis import drive
from dordis.errors import Aborted, InputError, ParametersRefused, ProtocolError
from dordis.privacy.accounting import Participation
from dordis.privacy.clipping import plan_bit
from dordis.privacy.encoding import Grid, chunk_ends
from dordis.privacy.mechanisms.central_gaussian import CentralGaussian
from dordis.privacy.mechanisms.none import NoMechanism
from dordis.privacy.mechanisms.skellam import DSkellam
from dordis.privacy.planning import Setting, plan
from dordis.protocol import Message, Resource
from dordis.protocols import parameters as rules
from dordis.protocols.delivery import DeliveryClient, Dispatch, Store
from dordis.protocols.distributed_dp import DistributedDP, agree_on, encoding_of
from dordis.protocols.neighbourhood import least_quorum, least_threshold
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.round import REPLIES, RoundClient, RoundServer
from dordis.protocols.secagg import SecAggServer
from dordis.protocols.secagg.messages import CollectInput
from dordis.simulation.exchange import LocalExchange
from tests.protocols.rounds import make_client, registry

N, DIM, CHUNKS = 16, 20_000, 3
ROTATION = bytes(range(32))
PLANNED = plan(
    Setting(
        Participation(100, N, 50), dim=DIM, delta=1e-4, bits=20,
        threshold=least_quorum(N, 1, MALICIOUS), tolerance=1,
    ),
    6.0,
)  # fmt: skip
BLOCK = PLANNED.setting.block
SPARSE = {"degree": 10, "threshold": least_threshold(N, 1, MALICIOUS, 10), "beacon": bytes(32)}
GRAPHS = {"SecAgg": {}, "SecAgg+": SPARSE}
PAPER = ["c-comp", "comm", "s-comp", "comm", "c-comp"]


def agreed(bit=None, **options):
    mechanism, settings = DSkellam.of(PLANNED), {"clients": range(N), "rotation": ROTATION, "chunks": CHUNKS} | options
    return agree_on(mechanism, PLANNED.setting, replace(PLANNED, bit=bit), run=bytes(32), index=3, **settings)


def without_noise(**options):
    grid = Grid(DIM, BLOCK, 100.0, 24)
    return rules.agree_on(
        run=bytes(32), index=3, clients=range(N), bits=24, ends=chunk_ends(DIM, BLOCK, CHUNKS),
        quorum=PLANNED.setting.t, tolerance=1, encoding=encoding_of(NoMechanism(grid), ROTATION),
        **({"threshold": PLANNED.setting.t} | options),
    )  # fmt: skip


def updates():
    rows = np.random.default_rng(5).normal(size=(N, DIM))
    return dict(enumerate(rows / np.linalg.norm(rows, axis=1, keepdims=True)))


class Play:
    """A round with everybody in it."""

    def __init__(self, parameters, lost=(), receivers=None):
        self.private = DistributedDP.of(parameters, DIM)
        self.clients = {
            u: RoundClient(make_client(parameters, u, self.private.encode(x)), DeliveryClient(self.private))
            for u, x in updates().items()
        }
        self.server = RoundServer(SecAggServer(parameters, registry(parameters)), self.private, receivers)
        self.kinds = []
        self.exchange = LocalExchange(
            self.clients, REPLIES, lambda u, m: (u, type(m).__name__, getattr(m, "chunk", -1)) in lost, ahead=True
        )

    def __call__(self, requests):
        self.kinds += {type(request).__name__ for request in requests.values()}
        return self.exchange(requests)

    def run(self):
        return drive.run(self.server, self)


@pytest.mark.parametrize("mode", [SEMI_HONEST, MALICIOUS])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("make", [agreed, without_noise], ids=["XNoise", "no noise"])
def test_a_chunk_has_the_five_stages_of_the_paper(mode, graph, make):
    parameters = make(mode=mode, **GRAPHS[graph])
    server = RoundServer(SecAggServer(parameters), DistributedDP.of(parameters, DIM))
    assert len(server.chunks) == CHUNKS
    for chunk in server.chunks:
        stages = [resource.value for resource, _ in itertools.groupby(step.resource for step in chunk.workflow)]
        assert stages == PAPER
    steps = [step.run for chunk in server.chunks for step in chunk.workflow]
    assert [step.run for step in server.workflow] == [step.run for step in server.setup.workflow] + steps
    assert all(step.resource is Resource.CLIENT for step in server.setup.workflow)


@pytest.mark.parametrize("mode", [SEMI_HONEST, MALICIOUS])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("make", [agreed, without_noise], ids=["XNoise", "no noise"])
def test_server_and_clients_have_the_aggregate_that_decoding_the_sums_gives(mode, graph, make):
    play = Play(make(mode=mode, **GRAPHS[graph]), lost={(3, "CollectInput", 1)})
    outputs = play.run()
    expected = play.private.decode(outputs)
    assert expected.survivors == (N, N - 1, N)
    for aggregate in (play.server.aggregate(), *(client.aggregate for client in play.clients.values())):
        assert np.array_equal(aggregate.total, expected.total)
        assert np.array_equal(aggregate.mean, expected.mean)
        assert aggregate.survivors == expected.survivors
    assert not play.exchange.errors


def test_the_clipping_bit_is_delivered_too():
    bit = plan_bit(multiplier=1.0, clients=N, bits=20)
    play = Play(agreed(bit=bit))
    expected = play.private.decode(play.run())
    assert expected.below is not None
    for aggregate in (play.server.aggregate(), *(client.aggregate for client in play.clients.values())):
        assert aggregate.below == expected.below
        assert np.array_equal(aggregate.mean, expected.mean)


def test_chunks_may_overtake_each_other():
    play = Play(agreed())
    drive.advance(play.server.setup.workflow, play)
    workflows = [chunk.workflow for chunk in reversed(play.server.chunks)]
    for steps in zip(*workflows, strict=True):
        drive.advance(steps, play)
    expected = play.private.decode(play.server.output())
    assert np.array_equal(play.server.aggregate().mean, expected.mean)
    assert all(np.array_equal(client.aggregate.mean, expected.mean) for client in play.clients.values())


def test_losses_at_the_end_harm_only_those_who_are_lost():
    play = Play(agreed(), lost={(u, "Dispatch", 0) for u in range(N - 1)} | {(N - 1, "Store", 2)})
    outputs = play.run()
    assert all(output.survivors == tuple(range(N)) for output in outputs)
    assert play.server.aggregate() is not None
    assert all(client.aggregate is None for client in play.clients.values())
    assert not play.exchange.errors


def test_nothing_is_delivered_to_nobody():
    play = Play(agreed(), receivers=())
    play.run()
    assert play.server.aggregate() is not None
    assert "RemoveNoise" not in play.kinds
    assert not {"Dispatch", "Store"} & {*play.kinds}


def test_a_chunk_that_is_not_decoded_yet_has_no_value():
    with pytest.raises(InputError, match="not decoded yet"):
        Play(agreed()).server.aggregate()


def test_a_sum_and_its_decoding_are_for_the_same_round():
    parameters = agreed()
    other = agreed(mode=MALICIOUS)
    with pytest.raises(InputError, match="different parameters"):
        RoundServer(SecAggServer(parameters), DistributedDP.of(other, DIM))


def test_a_mechanism_with_noise_at_the_end_is_refused_before_anything_is_asked():
    mechanism = CentralGaussian(Grid(DIM, BLOCK, 100.0, 24), clip=1.0, sensitivity=10**6, sigma=1.0)
    parameters = replace_encoding(without_noise(), mechanism)
    with pytest.raises(ParametersRefused, match="whole vectors only"):
        RoundServer(SecAggServer(parameters), DistributedDP(parameters, mechanism))


def replace_encoding(parameters, mechanism):
    return rules.agree_on(
        run=parameters.run, index=0, clients=parameters.clients, threshold=parameters.threshold, tolerance=1,
        bits=parameters.bits, ends=[span.stop for span in parameters.chunks],
        encoding=encoding_of(mechanism, ROTATION),
    )  # fmt: skip


class Unknown(Message, frozen=True):
    chunk: int


@pytest.mark.parametrize("request_", [Unknown(0), Store(0), Dispatch(0, 1, b""), CollectInput(0)])
def test_if_one_machine_leaves_the_round_both_do(request_):
    parameters = agreed()
    private = DistributedDP.of(parameters, DIM)
    client = RoundClient(make_client(parameters, 1, private.encode(updates()[1])), DeliveryClient(private))
    with pytest.raises(ProtocolError):
        client.handle(request_)
    for machine in (client, client.summing, client.delivering):
        with pytest.raises(Aborted):
            machine.handle(Store(0))


def test_decoded_chunks_are_values_that_hide_their_content():
    play = Play(agreed())
    play.run()
    chunk = play.server.chunks[0].decoded
    assert "array" not in repr(chunk)
    assert replace(chunk, survivors=1).survivors == 1
