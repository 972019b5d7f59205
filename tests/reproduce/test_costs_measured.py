"""Measured costs: a real round shows all that there are laws for, and laws are found in what follows them."""

import numpy as np
import pytest

from reproduce.costs_measured import TERMS, SmallRound, fit, observe


def test_a_real_round_shows_every_cost_that_there_is_a_law_for():
    seen = observe(SmallRound(6, 13, 2, 1))
    assert TERMS.keys() <= seen.keys()
    assert all(amount >= 0 for amount in seen.values())
    assert 2.5 * 4096 < seen["collect_inputs", "reply"] < 2.5 * 4096 + 200


def test_a_law_is_found_in_what_follows_it():
    rng = np.random.default_rng(0)
    rows = [{"one": 1, "dim": d, "masks*dim": d * n} for d, n in rng.integers(1, 1000, (12, 2)).tolist()]
    amounts = [3 + 0.5 * row["dim"] + 0.01 * row["masks*dim"] for row in rows]
    assert fit(("one", "dim", "masks*dim"), rows, amounts) == pytest.approx({"one": 3, "dim": 0.5, "masks*dim": 0.01})
