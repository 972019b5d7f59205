"""Scattering maps are those of kymatio, an independent implementation."""

import numpy as np
import pytest

from dordis.apps.learning.features.scattering import Scattering
from dordis.errors import InputError

kymatio = pytest.importorskip("kymatio.scattering2d.frontend.numpy_frontend", reason="needs kymatio, of the extra dev")


@pytest.mark.parametrize("size", [28, 32])
@pytest.mark.parametrize("order", [1, 2])
def test_the_maps_are_those_of_kymatio(size: int, order: int) -> None:
    images = np.random.default_rng(size).random((5, size, size)).astype(np.float32)
    theirs = kymatio.ScatteringNumPy2D(J=2, shape=(size, size), L=8, max_order=order)(images)
    ours = Scattering(size, order)
    assert theirs.shape[1] == sum(ours.orders)
    np.testing.assert_allclose(ours.maps(images), theirs, atol=2e-6)


def test_other_shapes_and_orders_are_refused() -> None:
    with pytest.raises(InputError, match="of order 1 or 2"):
        Scattering(28, 3)
    with pytest.raises(InputError, match="not \\(count, 28, 28\\)"):
        Scattering(28).maps(np.zeros((2, 32, 32), np.float32))
