"""Checks of a round, each with what passes and what is refused."""

import pytest

from dordis.errors import BudgetUsedUp, InputError
from dordis.runs.checks import check_able, check_finite, check_planned


def test_metrics_are_finite_numbers_under_names_that_are_not_reserved():
    assert check_finite({"accuracy": 1, "loss": 0.5}, 3) == {"accuracy": 1.0, "loss": 0.5}
    for values, said in (
        ({"loss": float("inf")}, "'loss' is not finite after round 3: training diverged"),
        ({"epsilon": 1.0}, "reserved for the ledger"),
        ({"loss": "much"}, "for 'loss' it is str"),
        ([1.0], "a dictionary of names and numbers, not list"),
    ):
        with pytest.raises(InputError, match=said):
            check_finite(values, 3)


def test_an_update_has_a_length_that_was_declared():
    check_planned(40, (40, 80))
    with pytest.raises(InputError, match="next update has 41 coordinates, and its `dims` are 40, 80"):
        check_planned(41, (40, 80))


def test_a_run_ends_if_too_few_of_enough_available_clients_can_afford_a_round():
    check_able(available=5, able=3, least=3)
    check_able(available=2, able=2, least=3)  # too few are there: they may come
    with pytest.raises(BudgetUsedUp):
        check_able(available=5, able=2, least=3)
