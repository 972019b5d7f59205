"""Local training goes down, repeats itself, and stays where it is told to."""

import numpy as np
import pytest

from dordis.apps.learning.models import Softmax
from dordis.apps.learning.trainer import Training, batches, label_offset, train
from dordis.errors import InputError

MODEL = Softmax(4, 3)
RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(20, 4)), RNG.integers(0, 3, 20)
START = RNG.normal(size=MODEL.dim)
PLAIN = Training(epochs=3, lr=0.2, balance=0.0)


def update(how, seed=(1,), start=START, x=X, y=Y):
    return train(MODEL, start, x, y, 3, how, seed)


def test_one_epoch_on_all_samples_is_one_step_down_the_gradient():
    step = update(Training(epochs=1, lr=0.2, balance=0.0))
    np.testing.assert_allclose(step, -0.2 * MODEL.gradient(START, X, Y, np.zeros(3)))


def test_training_lowers_the_loss_and_leaves_the_start_alone():
    before = START.copy()
    for how in (PLAIN, Training(epochs=3, batch=5, lr=0.2, momentum=0.5)):
        after = START + update(how)
        assert MODEL.evaluate(after, X, Y)["loss"] < MODEL.evaluate(START, X, Y)["loss"]
    np.testing.assert_array_equal(START, before)


def test_momentum_is_that_of_the_heavy_ball():
    how = Training(epochs=2, lr=0.2, momentum=0.5, balance=0.0)
    first = MODEL.gradient(START, X, Y, np.zeros(3))
    second = MODEL.gradient(START - 0.2 * first, X, Y, np.zeros(3))
    np.testing.assert_allclose(update(how), -0.2 * first - 0.2 * (0.5 * first + second))


def test_the_proximal_term_holds_a_client_back():
    free, held = (np.linalg.norm(update(Training(epochs=50, lr=0.1, proximal=mu))) for mu in (0.0, 5.0))
    assert held < free / 2


def test_the_order_of_samples_follows_the_seed():
    how = Training(epochs=2, batch=3)
    np.testing.assert_array_equal(update(how, (1, 2)), update(how, (1, 2)))
    assert not np.array_equal(update(how, (1, 2)), update(how, (1, 3)))


@pytest.mark.parametrize("batch", [0, 1, 3, 19, 20, 99])
def test_every_epoch_takes_each_sample_once(batch):
    taken = [np.arange(20)[part] for part in batches(20, Training(epochs=2, batch=batch), (1,))]
    assert np.bincount(np.concatenate(taken)).tolist() == [2] * 20
    assert max(part.size for part in taken) <= (batch or 20)


def test_a_client_without_samples_changes_nothing():
    for batch in (0, 5):
        assert not update(Training(batch=batch), x=X[:0], y=Y[:0]).any()


def test_balanced_training_does_not_learn_how_common_a_label_is():
    """Where inputs tell nothing, what is left to learn is the frequency of the labels."""
    x, y = np.zeros((10, 4)), np.array([0] * 8 + [1, 2])
    odds = {}
    for balance in (0.0, 0.5, 1.0):
        after = update(Training(epochs=2000, lr=0.5, balance=balance), start=np.zeros(MODEL.dim), x=x, y=y)
        odds[balance] = after[-3] - after[-2]
    assert odds == {
        0.0: pytest.approx(np.log(8), abs=0.01),
        0.5: pytest.approx(np.log(8) / 2, abs=0.02),
        1.0: pytest.approx(0, abs=0.02),
    }


def test_labels_that_a_client_lacks_have_a_finite_offset():
    offset = label_offset(np.array([1, 1, 0]), 3, Training(balance=1.0))
    assert np.isfinite(offset).all()
    assert offset[1] > offset[0] > offset[2]


def test_training_that_diverges_says_so():
    with np.errstate(all="ignore"), pytest.raises(InputError, match="lower"):
        update(Training(epochs=400, lr=1e4, proximal=10.0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch": -1},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"momentum": 1.0},
        {"proximal": -1.0},
        {"balance": 1.5},
    ],
)
def test_training_without_a_meaning_is_refused(wrong):
    with pytest.raises(InputError):
        Training(**wrong)
