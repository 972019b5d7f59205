"""Charged rounds are found as they were charged, and take little memory once they are completed."""

import gc
import tracemalloc
from dataclasses import replace

import pytest

from dordis.ledger.client_spending import Account, Budget
from dordis.ledger.entries import ChargedRounds, LedgerRound, outcome_from_output
from tests.ledger.charged_rounds import DELTA, charge_of, ended, parameters_of
from tests.runs.cohorts import RUN

BYTES = 2500
"""Most bytes of memory for a completed round of six clients in two chunks; as plain values it takes 5 times as much."""


def completed(index, dropped=()):
    charge = charge_of(index)
    outcomes = ended(parameters_of(index), dropped, dropped)
    return LedgerRound(charge, tuple(outcome_from_output(charge, outcome) for outcome in outcomes))


def test_rounds_are_found_as_they_were_charged():
    rounds = ChargedRounds()
    rounds[3] = LedgerRound(charge_of(3))
    rounds[4] = LedgerRound(charge_of(4))
    assert (rounds[3], rounds.completed) == (LedgerRound(charge_of(3)), 0)
    rounds[3] = completed(3, (5,))
    assert (rounds[3], rounds[3].payers) == (completed(3, (5,)), (0, 1, 2, 3, 4))
    assert (list(rounds), len(rounds), rounds.completed) == ([3, 4], 2, 1)
    assert 3 in rounds
    assert 5 not in rounds
    rounds[3] = completed(3)
    assert rounds.completed == 1
    del rounds[3]
    assert (list(rounds), rounds.completed) == ([4], 0)
    with pytest.raises(KeyError):
        rounds[3]


@pytest.mark.slow
def test_a_completed_round_takes_little_memory():
    account = Account(RUN, Budget(None, DELTA))

    def complete(indices):
        for index in indices:
            known = completed(index, (index % 6,))
            account.reserve(known.charge)
            account.complete(index, known.outcomes)

    complete(range(20))
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    complete(range(20, 60))
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert account.completed == 60
    assert grown / 40 < BYTES


def test_what_owners_counted_is_not_stored_beside_a_completed_round_that_says_the_same():
    account = Account(RUN, Budget(None, DELTA))
    for index, asked in ((0, (0, 1, 2, 3, 4, 5)), (1, (0, 1, 2))):
        known = completed(index, (5,))
        account.count(index, replace(known.charge.owner_charge, clients=asked))
        account.reserve(known.charge)
        before = account.owner_charges()
        account.complete(index, known.outcomes)
        assert account.owner_charges() == before
    assert account.used_indices == [0, 1]
    assert list(account._counted) == [1]  # fewer clients were asked than are charged


def test_owner_charges_of_completed_rounds_are_not_computed_again(monkeypatch):
    account = Account(RUN, Budget(None, DELTA))
    for index in range(3):
        known = completed(index, (5,))
        account.reserve(known.charge)
        account.complete(index, known.outcomes)
    expected = {(RUN, index): completed(index, (5,)).charge.owner_charge for index in range(3)}
    monkeypatch.setattr(ChargedRounds, "__getitem__", None)  # decoding every earlier round takes longer in every round
    assert account.owner_charges() == expected
    assert account.start_successor(bytes(32), Budget(None, DELTA)).owner_charges() == expected
