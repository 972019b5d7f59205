"""Every sample is dealt to exactly one client."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.apps.learning.data import Dataset, digits
from dordis.apps.learning.partition import ByKey, Iid, Lda
from dordis.errors import InputError


def labelled(y):
    y = np.asarray(y, np.int64)
    return Dataset(np.zeros((y.size, 1)), y, np.zeros((1, 1)), y[:1])


def rng(seed=0):
    return np.random.default_rng(seed)


def covers(parts, samples):
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


@settings(max_examples=60)
@given(
    y=st.lists(st.integers(0, 4), min_size=20, max_size=80),
    clients=st.integers(1, 10),
    kind=st.sampled_from([Iid(), Lda(1e-3), Lda(1.0, least=1), Lda(100.0, least=2)]),
    seed=st.integers(0, 2**32),
)
def test_each_sample_has_exactly_one_client(y, clients, kind, seed):
    parts = kind.split(labelled(y), clients, rng(seed))
    assert len(parts) == clients
    assert covers(parts, len(y))
    assert min(part.size for part in parts) >= getattr(kind, "least", 1)


def test_dealing_like_cards_gives_all_equally_many():
    parts = Iid().split(digits(), 100, rng())
    assert {part.size for part in parts} == {14, 15}


def test_mixes_of_labels_are_like_the_dirichlet_distribution():
    """With alpha parameters a for k labels, the expected sum of squared shares is (a + 1) / (k a + 1)."""
    y = np.repeat(np.arange(4), 25_000)
    for alpha in (0.1, 1.0, 10.0):
        parts = Lda(alpha).split(labelled(y), 400, rng(1))
        shares = np.array([np.bincount(y[part], minlength=4) / part.size for part in parts])
        assert (shares**2).sum(axis=1).mean() == pytest.approx((alpha + 1) / (4 * alpha + 1), rel=0.05)


def test_a_partition_follows_its_seed():
    for kind in (Iid(), Lda()):
        first, again, other = ([part.tolist() for part in kind.split(digits(), 50, rng(s))] for s in (1, 1, 2))
        assert first == again != other


def test_what_has_the_same_key_stays_together():
    keys = np.array(["ann", "bob", "cy", "dee", "ann", "cy", "eve"])
    data = replace(labelled([0, 1, 0, 1, 0, 1, 0]), keys=keys)
    parts = ByKey().split(data, 5, rng())
    assert sorted(tuple(keys[part]) for part in parts) == [("ann",) * 2, ("bob",), ("cy",) * 2, ("dee",), ("eve",)]
    parts = ByKey().split(data, 2, rng())
    assert covers(parts, 7)
    assert not {*keys[parts[0]]} & {*keys[parts[1]]}
    assert {len({*keys[part]}) for part in parts} == {2, 3}


def test_what_cannot_be_dealt_is_refused():
    for kind, clients in ((Iid(), 5), (Iid(), 0), (Lda(least=2), 3), (ByKey(), 1)):
        with pytest.raises(InputError):
            kind.split(labelled([0, 1, 0, 1]), clients, rng())
    with pytest.raises(InputError, match="4 keys for 5 clients"):
        ByKey().split(replace(labelled([0] * 4), keys=np.arange(4)), 5, rng())


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"alpha": float("nan")}, {"alpha": float("inf")}, {"least": -1}])
def test_dirichlet_parameters_without_a_meaning_are_refused(wrong):
    with pytest.raises(InputError):
        Lda(**wrong)
