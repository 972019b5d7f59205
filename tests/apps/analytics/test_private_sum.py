"""Clients with several rows, bounds by column, categories."""

import numpy as np
import pytest

import dordis
from dordis.errors import InputError

RNG = np.random.default_rng(4)
PEOPLE = 500
OWNER = np.repeat(np.arange(1, PEOPLE + 1), 3)
AGES = RNG.uniform(20, 60, PEOPLE)


def frame():
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    ages = np.repeat(AGES, 3) + np.tile([-1.0, 0.0, 1.0], PEOPLE)
    return pandas.DataFrame({"person": OWNER, "age": ages, "height": 100 + ages})


def test_a_client_with_several_rows_counts_once():
    rows = frame()
    result = dordis.mean(rows, client="person", bounds={"age": (0, 100), "height": (100, 200)}, epsilon=4)
    assert (result.clients, result.columns) == (PEOPLE, ("age", "height"))
    assert (np.abs(result.mean - [AGES.mean(), 100 + AGES.mean()]) < 6 * result.sigma).all()
    once = dordis.mean(AGES, bounds=(0, 100), epsilon=4)
    many = dordis.mean(np.repeat(AGES, 3), client=OWNER, bounds=(0, 100), epsilon=4)
    assert many.sigma == pytest.approx(once.sigma)


def test_the_rows_of_a_client_share_one_count():
    result = dordis.histogram(np.repeat(AGES, 3), client=OWNER, edges=[40], epsilon=4)
    assert result.clients == PEOPLE
    true = np.array([(AGES < 40).sum(), (AGES >= 40).sum()])
    assert (np.abs(result.counts - true) < 6 * result.sigma).all()


def test_no_client_is_longer_than_the_noise_provides_for(monkeypatch):
    from dordis.apps.analytics import queries

    norms, real = [], queries.private_sum

    def watched(planned, updates, how):
        norms.extend(float(np.linalg.norm(updates(i))) for i in range(planned.setting.clients))
        assert max(norms) <= planned.setting.clip * (1 + 1e-12)
        return real(planned, updates, how)

    monkeypatch.setattr(queries, "private_sum", watched)
    values = RNG.normal(size=(30, 2)) * 1e6
    dordis.mean(values, client=np.repeat([1, 2, 3], 10), bounds=(-1, 1), epsilon=1)
    dordis.histogram(values, client=np.repeat([1, 2, 3], 10), edges=[0], epsilon=1)
    assert len(norms) == 6


def test_texts_are_counted_by_public_categories():
    cities = RNG.choice(["Bonn", "Ulm", "Rome"], 600, p=[0.5, 0.3, 0.2])
    result = dordis.histogram(cities, categories=["Bonn", "Ulm"], epsilon=4)
    assert result.categories == ("Bonn", "Ulm", "other")
    true = np.array([(cities == name).sum() for name in ("Bonn", "Ulm", "Rome")])
    assert (np.abs(result.counts - true) < 6 * result.sigma).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bounds": [(0, 1), (0, 1)]}, "one pair .low, high., or 3 pairs"),
        ({"bounds": ([0, 0, 0], [1, 1, 1])}, "3 pairs"),
        ({"bounds": {"a": (0, 1)}}, "bounds by name"),
        ({"bounds": (1, 0)}, "below the upper"),
        ({"bounds": (0, 1), "client": "person"}, "no column 'person'"),
        ({"bounds": (0, 1), "client": [1, 2]}, "one client for each of the 20 rows"),
        ({"bounds": (0, 1), "client": [1] * 10 + [2] * 10}, "2 clients are too few"),
        ({"bounds": (0, 1), "client": [None] * 20}, "have no client"),
        ({"bounds": (0, 1), "client": range(20), "clients": range(1, 21)}, "give either client"),
    ],
)
def test_bounds_and_clients_that_do_not_fit_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        dordis.mean(RNG.random((20, 3)), epsilon=1, **options)


def test_a_ledger_needs_clients_whose_numbers_stay(tmp_path):
    names = [f"p{i}" for i in range(20)]
    with pytest.raises(InputError, match="clients must be named by whole numbers"):
        dordis.mean(RNG.random(20), client=names, bounds=(0, 1), epsilon=1, ledger=tmp_path / "ledger")


def test_signatures_are_short_enough_to_read():
    import inspect

    for function in (dordis.mean, dordis.histogram, dordis.train, dordis.run, dordis.load):
        assert len(str(inspect.signature(function))) < 700
