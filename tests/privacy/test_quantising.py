"""Quantised sums: the levels are those of Lloyd and Max, and dequantised sums have no bias."""

import numpy as np
import pytest
from scipy.stats import norm

from dordis.errors import InputError
from dordis.privacy.encoding import Grid
from dordis.privacy.quantising import BITS, DISTORTION, EDGES, LEVELS, delivered_size, dequantise, quantise

GRID = Grid(100_000, 4096, 1.0, 24, 32_768)


def drawn(count, deviation=1000.0):
    values = np.rint(np.random.default_rng(count).normal(0, deviation, count)).astype(np.int32)
    return values, values.view(np.uint32) % np.uint32(2**GRID.bits)


def test_levels_are_the_means_of_their_cells_and_edges_lie_between_them():
    """What Lloyd and Max ask of the quantiser of least error, for a standard Gaussian."""
    edges = np.array([-np.inf, *EDGES, np.inf])
    masses = np.diff(norm.cdf(edges))
    assert LEVELS.size == 2**BITS
    assert pytest.approx(-np.diff(norm.pdf(edges)) / masses, abs=1e-8) == LEVELS
    assert 1 - masses @ LEVELS**2 == pytest.approx(DISTORTION, abs=1e-8)


def test_what_is_delivered_has_the_error_of_the_quantiser_and_no_bias():
    values, total = drawn(32_768)
    read = dequantise(quantise(total, GRID), total.size, GRID)
    error = read - values
    assert np.mean(error**2) == pytest.approx(DISTORTION / (1 - DISTORTION) * np.mean(values**2.0), rel=0.05)
    assert read @ values / (values @ values.astype(float)) == pytest.approx(1, abs=0.003)


def test_blocks_have_scales_of_their_own():
    small, large = drawn(4096, 10.0), drawn(4096, 10_000.0)
    read = dequantise(quantise(np.concatenate([small[1], large[1]]), GRID), 8192, GRID)
    for part, (values, _) in zip((read[:4096], read[4096:]), (small, large), strict=True):
        assert np.mean((part - values) ** 2) < 0.015 * np.mean(values**2.0)
    assert not dequantise(quantise(np.zeros(4096, np.uint32), GRID), 4096, GRID).any()


def test_a_delivery_of_another_form_is_refused():
    _, total = drawn(8192)
    data = quantise(total, GRID)
    assert len(data) == delivered_size(8192, 4096) == 8 + 4096
    for changed in (data[:-1], data + b"\0", b""):
        with pytest.raises(InputError, match="delivered coordinates take 4104 bytes"):
            dequantise(changed, 8192, GRID)
    for scale in (np.nan, np.inf, -1.0, 1e30):
        with pytest.raises(InputError, match="too large for the round's ring"):
            dequantise(np.array([scale], "<f4").tobytes() + data[4:], 8192, GRID)
