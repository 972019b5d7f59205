"""Renyi divergences of Skellam noise: the documented formula, refused for orders at which it is not proved."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import InputError
from dordis.privacy import renyi


@settings(deadline=None)
@given(st.integers(2, 2**14), st.floats(1, 1e9), st.floats(1, 1e9), st.floats(1, 1e12))
def test_the_divergence_is_the_documented_formula(alpha: int, l2_squared: float, l1: float, variance: float) -> None:
    a, D2, D1, mu = (mpmath.mpf(x) for x in (alpha, l2_squared, l1, variance))
    exact = a * D2 / (2 * mu) + min(((2 * a - 1) * D2 + 6 * D1) / (4 * mu**2), 3 * D1 / (2 * mu))
    (result,) = renyi.skellam_rdp(np.array([alpha]), l2_squared, l1, variance)
    assert result == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("orders", [[2.5], [1], [2.0]])
def test_the_divergence_is_refused_where_it_is_not_proved(orders: list[float]) -> None:
    with pytest.raises(InputError, match="integer orders"):
        renyi.skellam_rdp(np.array(orders), 1.0, 1.0, 1.0)


def test_no_noise_hides_nothing() -> None:
    assert np.isinf(renyi.skellam_rdp(np.array([2, 3]), 1.0, 1.0, 0.0)).all()
