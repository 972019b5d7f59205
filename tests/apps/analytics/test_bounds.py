"""Ranges found privately: what they are, what a client can change, and who pays."""

import math

import numpy as np
import pytest

import dordis
from dordis.apps.analytics.bounds import WIDTH, bin_shares, find_ranges
from dordis.errors import BudgetExceeded, InputError
from dordis.ledger.ledger import Ledger

TABLE = dordis.Table(label="ill", categories={"ill": ("no", "yes")})


def people(count: int = 900) -> dict[str, list[object]]:
    rng = np.random.default_rng(5)
    return {
        "age": rng.uniform(18, 100, count).tolist(),
        "balance": rng.uniform(-900, 3000, count).tolist(),
        "town": ["here", "there", "away"] * (count // 3),
        "ill": ["no", "yes", "no"] * (count // 3),
    }


def test_ranges_of_numeric_features_are_found_and_others_left_alone():
    found = find_ranges(people(), TABLE, epsilon=6.0, share=0.3)
    assert found.ranges == {"age": (0.0, 128.0), "balance": (-1024.0, 4096.0)}
    assert (found.not_found, found.clients) == ((), 900)
    assert found.table.ranges == found.ranges
    assert found.table.categories == TABLE.categories


def test_the_cost_and_the_rest_compose_to_the_budget():
    """The oracle is Balle and Wang's delta of a Gaussian, by the error function alone."""
    found = find_ranges(people(), TABLE, epsilon=6.0, share=0.3)

    def theta(epsilon: float) -> float:
        low, high = 1e-3, 10.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if delta_of(epsilon, middle) < found.delta else (low, middle)
        return low

    assert math.hypot(theta(found.epsilon), theta(found.epsilon_left)) == pytest.approx(theta(6.0), rel=0.01)
    assert theta(found.epsilon) ** 2 == pytest.approx(0.3 * theta(6.0) ** 2, rel=0.02)


def delta_of(epsilon: float, theta: float) -> float:
    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    return phi(theta / 2 - epsilon / theta) - math.exp(epsilon) * phi(-theta / 2 - epsilon / theta)


def test_no_client_changes_the_counts_by_more_than_the_root_of_the_columns():
    rng = np.random.default_rng(7)
    values = np.where(
        rng.random((500, 3)) < 0.2, np.nan, rng.normal(size=(500, 3)) * 10.0 ** rng.integers(-9, 15, (500, 1))
    )
    owner = np.concatenate([np.arange(40), rng.integers(0, 40, 460)])
    update = bin_shares(values, owner)
    norms = [np.linalg.norm(update(client)) for client in range(40)]
    assert max(norms) <= math.sqrt(3) + 1e-12
    sides = np.array([update(client) for client in range(40)]).reshape(40, 3, 2, WIDTH // 2).sum(axis=3)
    for client in range(40):
        for column in range(3):
            own = values[owner == client, column]
            own = own[~np.isnan(own)]
            share = [(own >= 0).mean(), (own < 0).mean()] if own.size else [0.0, 0.0]
            assert sides[client, column].tolist() == pytest.approx(share)


def test_all_rows_of_a_client_count_as_one():
    rows = people()
    rows["person"] = ["same"] * 600 + [f"p{i}" for i in range(300)]
    rows["age"] = [1e6] * 600 + [50.0] * 300
    table = dordis.Table(label="ill", client="person", categories=TABLE.categories, exclude=("balance", "town"))
    found = find_ranges(rows, table, epsilon=6.0, share=0.5)
    assert found.clients == 301
    assert found.ranges == {"age": (0.0, 64.0)}  # 600 rows of one person do not widen it


def test_every_client_is_charged_before_anything_is_computed(tmp_path):
    path = tmp_path / "data.ledger"
    find_ranges(people(), TABLE, epsilon=6.0, share=0.3, ledger=path, budget=4.0)
    spent = Ledger.open(path).spent()[0]
    assert spent == pytest.approx(find_ranges(people(), TABLE, epsilon=6.0, share=0.3).epsilon)
    before = path.read_bytes()

    def untouched(count: int) -> bytes:
        raise AssertionError("noise was drawn for a query that the ledger cannot pay for")

    with pytest.raises(BudgetExceeded):
        find_ranges(people(), TABLE, epsilon=6.0, share=0.3, ledger=path, entropy=untouched)
    assert path.read_bytes() == before


def test_ranges_and_a_run_with_the_rest_fit_into_one_budget(tmp_path):
    rows, path = people(), tmp_path / "data.ledger"
    found = find_ranges(rows, TABLE, epsilon=6.0, share=0.2, ledger=path, budget=6.0)
    table = dordis.Table(label="ill", exclude=("town",), ranges=found.ranges, categories=TABLE.categories)
    result = dordis.train(
        "softmax", rows, table=table, epsilon=found.epsilon_left, rounds=2, ledger=path, output=tmp_path
    )
    assert result.epsilon == pytest.approx(found.epsilon_left, rel=1e-3)
    assert Ledger.open(path).spent()[0] <= 6.0
    with pytest.raises(BudgetExceeded):
        dordis.mean(rows["age"], bounds=(0, 128), epsilon=1.0, ledger=path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share": 0.0}, "share"),
        ({"share": 1.0}, "share"),
        ({"epsilon": 0.05}, "not enough to find"),
        ({"columns": ["height"]}, "no column height"),
        ({"columns": ["town"]}, "text has categories"),
        ({"columns": []}, "nothing to find"),
        ({"budget": 3.0}, "needs a ledger"),
    ],
)
def test_wrong_questions_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        find_ranges(people(), TABLE, **({"epsilon": 6.0} | options))
