"""What steps cost: the steps are the protocol's, a shape counts what the noise plan says, chunks are padded as said."""

from dordis.protocol import Resource
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.secagg import SecAggServer
from dordis.rounds.engine import RoundServer
from reproduce.costs import CHUNK_STEPS, CLIENT, RELEASE, SETUP_STEPS, Costs, Shape
from reproduce.costs_measured import SmallRound
from reproduce.costs_paper import OVERLAP, PAPER

TINY = SmallRound(6, 13, 2, 1)


def test_modelled_steps_are_the_steps_of_a_round():
    p = TINY.parameters
    server = RoundServer(SecAggServer(p), DistributedDP(p, TINY.mechanism))
    assert [step.run.__name__ for step in server.setup.workflow] == list(SETUP_STEPS)
    for chunk in server.chunks:
        modelled = {step.run.__name__: step.resource for step in chunk.workflow if step.run.__name__ != RELEASE}
        assert modelled == CHUNK_STEPS
        assert list(modelled) == list(CHUNK_STEPS)


def test_a_shape_counts_what_the_noise_plan_says():
    shape = TINY.shape()
    assert (shape.clients, shape.dropped, shape.chunks, shape.dim) == (6, 1, 2, 4096)
    counts = Shape(10, 9, 2, 3, 100, base=1, removable=1, due=4).counts()
    assert counts["masks*dim"] == 10 * 100
    assert counts["lifted*dim"] == (8 + 2 * 8) * 100
    assert counts["shares"] == 3 * 3 * 10


def test_what_is_padded_as_a_whole_is_as_long_in_any_number_of_chunks():
    assert [m * OVERLAP.chunk_dim(11_183_562, m) for m in (1, 2, 4, 8)] == [2**24] * 4


def test_only_the_last_chunk_pays_for_the_whole_vector():
    costs = Costs("toy", {"store": {CLIENT: {"dim": 1.0}}, "assemble": {CLIENT: {"vector": 0.5}}})
    _, chunks = costs.steps(Shape(2, 1, 0, 3, 10))
    assert [chunk[-1].client for chunk in chunks] == [10, 10, 25]
    assert {cost.resource for chunk in chunks for cost in chunk} == set(Resource)


def test_the_papers_links_carry_one_way_at_a_time():
    _, ours = Costs("toy", {}).steps(Shape(2, 1, 0, 1, 10))
    _, papers = PAPER.steps(Shape(2, 1, 0, 1, 10))
    assert [cost.resource for cost in ours[0] if cost.step == "dispatch"] == [Resource.DOWNLINK]
    assert {cost.resource for cost in papers[0]} == {*Resource} - {Resource.DOWNLINK}
