"""A failed round is tried again under the next index, without those who have to go, and not for ever."""

from itertools import combinations, product

import pytest

from dordis.errors import InputError, RoundFailed, TooFewClients, Unrecoverable
from dordis.pipeline import executor as drive
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from dordis.protocols.noise_addition_and_removal import PrivateServer
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.secagg import SecAggServer
from dordis.protocols.secagg.messages import DeliverShares
from dordis.runs.retry import attempt, to_evict
from dordis.simulation.exchange import LocalExchange
from tests.protocols.rounds import make_client, random_inputs, registry


def evicted(named=(), accusations=(), colluders=2, around=2):
    return to_evict(RoundFailed("", frozenset(named), frozenset(accusations)), colluders, around)


def test_whoever_is_named_goes_alone():
    assert evicted(named={4}) == {4}
    assert evicted(named={4}, accusations={(4, 5), (6, 4)}) == {4}


def test_silence_is_not_blamed():
    assert evicted() == frozenset()


def test_of_a_pair_both_go():
    assert evicted(accusations={(1, 4)}) == {1, 4}


def test_whoever_has_more_partners_than_there_can_be_liars_goes_alone():
    assert evicted(accusations={(2, 4), (2, 5), (3, 2)}) == {2}
    assert evicted(accusations={(4, 2), (5, 2)}, colluders=1, around=1) == {2}


def test_a_client_accused_by_as_many_as_there_can_be_liars_does_not_go_alone():
    assert evicted(accusations={(2, 4), (2, 5)}) == {2, 4}


def test_one_who_accuses_and_is_accused_by_the_same_has_one_partner():
    assert evicted(accusations={(2, 4), (4, 2), (2, 5)}) == {2, 4}


def test_liars_that_are_known_leave_fewer_for_the_others():
    assert evicted(named={9}, accusations={(2, 4), (2, 5)}) == {2, 9}
    assert evicted(accusations={(1, 3), (1, 4), (1, 5), (2, 6), (2, 7)}) == {1, 2}


def test_on_a_sparse_graph_liars_elsewhere_do_not_leave_fewer_for_a_neighbourhood():
    """c_k = 2 of T_C = 5: a liar that is named far away may leave both liars around client 2 where they are."""
    assert evicted(named={9}, accusations={(2, 4), (2, 5)}, colluders=5, around=2) == {2, 4, 9}
    assert evicted(accusations={(2, 4), (2, 5), (2, 6)}, colluders=5, around=2) == {2}


def test_pairs_that_share_nobody_all_go():
    assert evicted(accusations={(1, 2), (3, 4)}) == {1, 2, 3, 4}


def check_every_placement(liars, clients, most):
    """Every set of accusations that leaves honest pairs alone, each liar with so many partners at most.

    A liar goes, and not more honest clients than liars.
    """
    one, other = ([pair for pair in combinations(range(clients), 2) if liar in pair] for liar in liars)
    for first, second in product(subsets(one, most), subsets(other, most)):
        if first or second:
            going = evicted(accusations=first + second)
            assert 0 < len(going.intersection(liars)) >= len(going.difference(liars))


def subsets(items, most):
    return [chosen for count in range(most + 1) for chosen in combinations(items, count)]


@pytest.mark.parametrize("liars", [*combinations(range(6), 2)])
def test_every_placement_of_accusations_among_six(liars):
    check_every_placement(liars, clients=6, most=5)


@pytest.mark.slow
@pytest.mark.parametrize("liars", [*combinations(range(10), 2)])
def test_every_placement_of_accusations_among_ten(liars):
    """With more than three partners a liar goes alone, as it does with three."""
    check_every_placement(liars, clients=10, most=3)


@pytest.mark.slow
@pytest.mark.parametrize("liars", [(0, 1), (4, 5), (3, 9)])
def test_every_placement_of_accusations_among_ten_without_exception(liars):
    check_every_placement(liars, clients=10, most=9)


def test_bad_luck_is_tried_again_so_often_and_the_last_failure_is_raised():
    seen = []

    def run(index):
        seen.append(index)
        if index < 12:
            raise TooFewClients("Unmask", index, 3)
        return "sum"

    attempted = attempt(run, 10, limit=3)
    assert (attempted.output, attempted.index) == ("sum", 12)
    assert [failure.index for failure in attempted.failures] == [10, 11]
    with pytest.raises(TooFewClients) as failure:
        attempt(run, 9, limit=2)
    assert failure.value.answered == 10
    assert seen == [10, 11, 12, 9, 10]
    with pytest.raises(InputError):
        attempt(run, 10, limit=0)


def test_a_round_that_a_lie_ended_does_not_count_as_bad_luck():
    def run(index):
        if index < 6:
            raise Unrecoverable("damaged", frozenset({index % 2}), frozenset({(index, index + 1)}))
        return index

    assert attempt(run, 0, limit=1).output == 6


def test_the_same_suspects_again_and_again_do_not_keep_a_round_going():
    def run(index):
        raise Unrecoverable("damaged", frozenset({7}))

    with pytest.raises(Unrecoverable):
        attempt(run, 0, limit=3)


class Garbler:
    """A client whose ciphertext for one peer is damaged on the way: one of the two is at fault."""

    def __init__(self, client, peer):
        self.client, self.peer = client, peer

    def handle(self, request):
        if isinstance(request, DeliverShares) and self.peer in request.ciphertexts:
            damaged = bytes(len(request.ciphertexts[self.peer]))
            request = DeliverShares(request.members, {**request.ciphertexts, self.peer: damaged})
        return self.client.handle(request)


def test_a_round_with_a_bad_ciphertext_succeeds_at_the_next_index_without_the_pair():
    gone = set()

    def run(index):
        clients = {*range(7)} - gone
        p = agree_on(
            mode=MALICIOUS, run=bytes(32), index=index, clients=clients, bits=16, ends=[3],
            threshold=len(clients) // 2 + 2, tolerance=1, scheme=Scheme.SINGLE, variances=[4],
        )  # fmt: skip
        machines = {u: make_client(p, u, x) for u, x in random_inputs(p, 0).items()}
        if 2 in machines:
            machines[2] = Garbler(machines[2], peer=5)
        try:
            return p.clients, drive.run(PrivateServer(SecAggServer(p, registry(p)), p), LocalExchange(machines))
        except RoundFailed as failure:
            gone.update(to_evict(failure, p.colluders, p.colluders_around))
            raise

    attempted = attempt(run, 0, limit=2)
    assert attempted.failures[0].error.accusations == {(5, 2)}
    assert attempted.output[0] == (0, 1, 3, 4, 6)
    assert attempted.index == 1
