"""Liars end rounds at most as often as there are liars, and not more honest clients have to go than liars.

Real machines, a fixed cohort: a round that fails is run again without those who have to go, until one goes through.
What the server concludes from accusations depends on nothing but who accuses whom: that is tried for every graph.
"""

import random
from itertools import combinations, product

import pytest

from dordis.errors import Unrecoverable
from dordis.protocols.secagg.messages import RemoveNoise
from dordis.runs.retry import to_evict
from tests.adversary.liars_at_stages import (
    AIMED,
    GRAPHS,
    STAGES,
    T_C,
    UNAIMED,
    accuse,
    agreed,
    check_evictions,
    go_through,
    lie,
    silent_clients,
)

TEN = range(1, 11)
PAIRS = tuple(combinations(TEN, T_C))
KINDS = (*UNAIMED, *AIMED)


def check(n, graph, lying):
    ended, going, told = go_through(n, graph, lying)
    assert ended <= T_C
    check_evictions(going, lying)
    return ended, told


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_lie_of_each_kind_beside_an_accusation(graph, kind):
    around = agreed(tuple(TEN), graph).neighbourhoods  # a client accuses only those who send shares to it
    accused = min(around[3] & around[7] - {3, 7})
    ended, _ = check(10, graph, {3: [lie(kind, accused)], 7: [accuse(accused)]})
    assert ended >= 1


@pytest.mark.parametrize("graph", GRAPHS)
def test_nobody_has_to_go_when_nobody_lies(graph):
    assert go_through(10, graph, {}) == (0, frozenset(), set())


def placed(pair, stages, n, seed):
    """Return lies of a pair of clients, each in its stages; which of the stage's, and at whom, follows from a seed."""
    rng = random.Random(f"{pair} {stages} {seed}")

    def told(u, stage):
        return lie(rng.choice(STAGES[stage]), rng.choice([v for v in range(1, n + 1) if v != u]))

    return {u: [told(u, stage) for stage in own] for u, own in zip(pair, stages, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("stages", tuple(product([(1,), (4,), (5,)], repeat=T_C)), ids=str)
def test_every_pair_of_liars_in_every_stage(graph, stages):
    for pair in PAIRS:
        check(10, graph, placed(pair, stages, 10, graph))


@pytest.mark.parametrize("graph", GRAPHS)
def test_liars_that_lie_in_every_stage(graph):
    for pair in PAIRS[::9]:
        check(10, graph, placed(pair, [(1, 4, 5), (4, 5)], 10, graph))


@pytest.mark.parametrize("graph", GRAPHS)
def test_lies_about_noise_are_told_when_a_seed_is_missing(graph):
    (silent, *_), liar = silent_clients(agreed(tuple(TEN), graph), {3}), 3
    assert silent != liar
    for kind in STAGES[5]:
        _, going, told = go_through(10, graph, {liar: [lie(kind, 0)]})
        assert told == {(liar, RemoveNoise)}
        assert going == {liar}


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS)
def test_lies_among_a_hundred(graph):
    rng = random.Random(graph)
    for stages in ([(1,), (4,)], [(5,), (4, 5)]):
        check(100, graph, placed(rng.sample(range(1, 101), T_C), stages, 100, graph))


# The rule alone


def check_rule(liars, edges, named=()):
    """After these accusations a liar has to go, and not more honest clients."""
    going = to_evict(Unrecoverable("", frozenset(named), frozenset(edges)), T_C, T_C)
    check_evictions(going, liars)
    assert not going.isdisjoint(liars) or not (edges or named)


def accusations(honest, step=1):
    """Yield every graph of accusations between two liars and so many honest clients, each with an edge, and who lies.

    Every edge has a liar.  Clients without one change nothing, since the order of ids alone matters.  Of the places
    that the liars can have in this order every `step`th is taken: with five honest clients or more a liar has more than
    two partners and goes alone, whatever the order.
    """
    everyone = range(honest + T_C)
    for liars in list(combinations(everyone, T_C))[::step]:
        others = [u for u in everyone if u not in liars]
        for partners in product(((liars[0],), (liars[1],), liars), repeat=honest):
            edges = {(u, liar) for u, theirs in zip(others, partners, strict=True) for liar in theirs}
            yield liars, edges
            yield liars, edges | {liars}


@pytest.mark.parametrize("honest", [*range(5), *(pytest.param(more, marks=pytest.mark.slow) for more in range(5, 9))])
def test_every_graph_of_accusations_costs_a_liar_and_not_more_honest_clients(honest):
    for liars, edges in accusations(honest, step=1 if honest < 7 else 11):
        check_rule(liars, edges)


def test_every_graph_of_accusations_beside_a_liar_who_is_named():
    for liars, edges in accusations(3):
        for liar in liars:
            check_rule(liars, edges, {liar})


def test_graphs_of_accusations_among_a_hundred():
    rng = random.Random("accusations among a hundred")
    for _ in range(300):
        liars = set(rng.sample(range(100), T_C))
        possible = [(u, liar) for u in range(100) for liar in liars if u != liar]
        check_rule(liars, set(rng.sample(possible, rng.choice([1, 2, 3, 4, 6, 20, 100]))))
