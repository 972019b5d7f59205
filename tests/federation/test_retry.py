"""A failed round is tried again under the next index, without those to blame, and not for ever."""

import pytest

from dordis import drive
from dordis.errors import InputError, TooFewClients, Unrecoverable
from dordis.federation.retry import attempt, leave_out
from dordis.privacy.xnoise import Scheme
from dordis.protocols.parameters import MALICIOUS, agree_on
from dordis.protocols.secagg import SecAggServer
from dordis.protocols.secagg.messages import DeliverShares
from dordis.simulation.exchange import LocalExchange
from tests.protocols.rounds import make_client, random_inputs, registry


def test_a_pair_is_left_out_with_both_members():
    assert leave_out(range(6), {(1, 4)}, least=3) == {0, 2, 3, 5}


def test_a_client_blamed_by_several_goes_alone():
    assert leave_out(range(6), {(2, 4), (2, 5), (3, 2)}, least=3) == {0, 1, 3, 4, 5}


def test_nobody_is_left_out_below_the_least_cohort():
    assert leave_out(range(4), {(1, 2)}, least=3) == {0, 1, 2, 3}
    assert leave_out(range(6), {(0, 1), (2, 3)}, least=3) == {2, 3, 4, 5}


def test_clients_who_are_gone_explain_nothing():
    assert leave_out([0, 1, 2], {(1, 9)}, least=1) == {0, 1, 2}


def test_failures_are_kept_and_the_last_is_raised():
    seen = []

    def run(index, blamed):
        seen.append((index, blamed))
        if index < 12:
            raise Unrecoverable("damaged", frozenset({(index, index + 1)}))
        return "sum"

    attempted = attempt(run, 10, limit=3)
    assert (attempted.output, attempted.index) == ("sum", 12)
    assert [failure.index for failure in attempted.failures] == [10, 11]
    assert seen == [(10, frozenset()), (11, {(10, 11)}), (12, {(10, 11), (11, 12)})]
    with pytest.raises(Unrecoverable):
        attempt(run, 10, limit=2)
    with pytest.raises(InputError):
        attempt(run, 10, limit=0)


def test_bad_luck_is_retried_without_blame():
    calls = iter([TooFewClients("Unmask", 2, 3), None])

    def run(index, blamed):
        assert not blamed
        error = next(calls)
        if error:
            raise error
        return index

    assert attempt(run, 0, limit=5).output == 1


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
    def run(index, blamed):
        clients = leave_out(range(7), blamed, least=5)
        p = agree_on(
            mode=MALICIOUS, run=bytes(32), index=index, clients=clients, bits=16, ends=[3],
            threshold=len(clients) // 2 + 2, tolerance=1, scheme=Scheme.SINGLE, variances=[4],
        )  # fmt: skip
        machines = {u: make_client(p, u, x) for u, x in random_inputs(p, 0).items()}
        if 2 in machines:
            machines[2] = Garbler(machines[2], peer=5)
        return p.clients, drive.run(SecAggServer(p, registry(p)), LocalExchange(machines))

    attempted = attempt(run, 0, limit=2)
    assert attempted.failures[0].blame == {(5, 2)}
    assert attempted.output[0] == (0, 1, 3, 4, 6)
    assert attempted.index == 1
