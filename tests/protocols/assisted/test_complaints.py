"""Complaints never evict an honest party: checked on every graph of small runs, with every choice of colluders."""

from itertools import chain, combinations, product

import pytest

from dordis.protocols.assisted.complaints import Complaints


def subsets(items):
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


@pytest.mark.parametrize(("m", "f", "n", "colluders"), [(3, 1, 3, 1), (4, 1, 3, 1), (4, 1, 3, 2), (4, 2, 3, 1)])
def test_no_honest_party_is_evicted_and_few_honest_clients_are_left_out(m, f, n, colluders):
    """Edges have a colluder at one end at least: honest helpers name no honest client."""
    helpers, clients = range(1, m + 1), range(1, n + 1)
    graphs = 0
    for bad_helpers, bad_clients in product(combinations(helpers, f), combinations(clients, colluders)):
        possible = [(h, u) for h, u in product(helpers, clients) if h in bad_helpers or u in bad_clients]
        for edges in subsets(possible):
            graphs += 1
            settled = Complaints().with_edges(edges, f, colluders)
            assert settled.helpers <= set(bad_helpers)
            assert settled.clients <= set(bad_clients)
            assert len(settled.left_out - set(bad_clients)) <= f * colluders
            assert all(h not in settled.helpers and u not in settled.clients for h, u in settled.edges)
    assert graphs >= 288


def test_it_does_not_matter_in_which_order_complaints_come():
    edges = [(1, 1), (1, 2), (2, 1), (3, 1)]
    at_once = Complaints().with_edges(edges, 1, 1)
    one_by_one = Complaints()
    for edge in edges:
        one_by_one = one_by_one.with_edges([edge], 1, 1)
    assert at_once.clients == one_by_one.clients == {1}
    assert at_once.helpers == one_by_one.helpers == {1}


def test_a_proved_liar_makes_the_rest_stricter():
    edge = Complaints().with_edges([(1, 5)], 1, 1)
    assert edge.left_out == {5}
    assert edge.with_liars([2], 1, 1) == Complaints(helpers=frozenset({2}), clients=frozenset({5}))
    assert edge.with_liars([1], 1, 1) == Complaints(helpers=frozenset({1}))
