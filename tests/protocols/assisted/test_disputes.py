"""Complaints never evict an honest party, on every graph of small runs; a set's value needs enough equal answers."""

from itertools import chain, combinations, product

import pytest

from dordis.protocols.assisted.disputes import Complaints, SetValue, SetVoices


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


RIGHT, WRONG = SetValue(b"right", b""), SetValue(b"wrong", b"")


def settle(voices, wholes, digests, silent=()):
    """Ask until nobody is left to ask; `wholes` and `digests` say what each member answers."""
    while asked := voices.next_requests({}):
        for h, is_whole in asked.items():
            if h in silent:
                voices.silent.add(h)
            elif is_whole:
                voices.hear(h, bytes(wholes[h].masks), wholes[h])
            else:
                voices.hear(h, bytes(digests[h].masks))


def test_one_whole_and_f_digests_are_asked_for_and_more_only_if_they_disagree():
    voices = SetVoices(0, (1, 2, 3), 2)
    assert voices.next_requests({}) == {1: True, 2: False}
    assert voices.next_requests({1: 1}) == {2: True, 3: False}
    settle(voices, dict.fromkeys((1, 2, 3), RIGHT), dict.fromkeys((1, 2, 3), RIGHT))
    assert voices.value is RIGHT
    assert list(voices.said) == [1, 2]


def test_one_liar_of_three_never_wins_and_is_proved_if_it_was_heard():
    for liar, whole, digest in product((1, 2, 3), (RIGHT, WRONG), (RIGHT, WRONG)):
        voices = SetVoices(0, (1, 2, 3), 2)
        wholes, digests = dict.fromkeys((1, 2, 3), RIGHT), dict.fromkeys((1, 2, 3), RIGHT)
        settle(voices, wholes | {liar: whole}, digests | {liar: digest})
        assert voices.value is not None
        assert voices.value.masks == b"right"
        assert voices.liars <= {liar}
        if liar in voices.said and voices.said[liar] == b"wrong":
            assert voices.liars == {liar}


def test_a_right_digest_with_a_wrong_whole_proves_a_liar():
    voices = SetVoices(0, (1, 2, 3), 2)
    voices.hear(1, b"wrong", WRONG)
    voices.hear(2, b"right")
    assert voices.next_requests({}) == {3: False}
    voices.hear(3, b"right")
    assert voices.liars == {1}
    assert voices.next_requests({}) == {2: True}
    voices.hear(2, b"wrong", WRONG)
    assert voices.liars == {2}  # it gave two values; the first one of helper 3 stands alone
    assert voices.value is None
    assert voices.next_requests({}) == {}


def test_lost_members_are_replaced_and_too_few_end_the_search():
    voices = SetVoices(0, (1, 2, 3), 2)
    settle(voices, dict.fromkeys((1, 2, 3), RIGHT), dict.fromkeys((1, 2, 3), RIGHT), silent=(1,))
    assert voices.value is RIGHT
    voices = SetVoices(0, (1, 2, 3), 2)
    settle(voices, dict.fromkeys((1, 2, 3), RIGHT), dict.fromkeys((1, 2, 3), RIGHT), silent=(1, 2))
    assert voices.value is None
    assert not voices.liars


def test_one_voice_suffices_where_parties_follow_the_protocol():
    voices = SetVoices(0, (2, 3), 1)
    assert voices.next_requests({}) == {2: True}
    voices.silent.add(2)
    assert voices.next_requests({}) == {3: True}
