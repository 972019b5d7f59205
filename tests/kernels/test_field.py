"""The field kernels against plain integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dordis.kernels import field
from tests.references import shamir

P = shamir.P

elements = st.one_of(st.integers(0, P - 1), st.sampled_from([0, 1, P - 1]))
nonzero = st.one_of(st.integers(1, P - 1), st.integers(1, 20), st.just(P - 1))
quick = settings(deadline=None, max_examples=40)


def row(values: list[int]) -> field.Elements:
    return np.array(values, np.uint32)


def product(left: field.Elements, right: field.Elements) -> field.Elements:
    return np.array(left.astype(object) @ right.astype(object) % P, np.uint32)


@quick
@given(st.data(), st.integers(0, 5), st.integers(1, 11), st.integers(0, 5))
def test_product_is_that_of_integers(data: st.DataObject, rows: int, depth: int, width: int) -> None:
    left = data.draw(arrays(np.uint32, (rows, depth), elements=elements))
    right = data.draw(arrays(np.uint32, (depth, width), elements=elements))
    np.testing.assert_array_equal(field.multiply(left, right), product(left, right))


@pytest.mark.parametrize("width", [255, 256, 257, 600])
def test_product_of_the_largest_elements_does_not_overflow(width: int) -> None:
    left, right = np.full((2, 103), P - 1, np.uint32), np.full((103, width), P - 1, np.uint32)
    np.testing.assert_array_equal(field.multiply(left, right), np.full((2, width), 103, np.uint32))


def test_product_of_many_columns_is_that_of_integers() -> None:
    random = np.random.default_rng(1)
    left = random.integers(0, P, (3, 50), np.uint32)
    right = random.integers(0, P, (50, 777), np.uint32)
    np.testing.assert_array_equal(field.multiply(left, right), product(left, right))


@quick
@given(st.lists(nonzero, max_size=5), st.integers(1, 9))
def test_vandermonde_holds_the_powers(points: list[int], width: int) -> None:
    expected = [[pow(x, k, P) for k in range(width)] for x in points]
    assert field.vandermonde(row(points), width).tolist() == expected


@quick
@given(st.lists(elements, min_size=1, max_size=8, unique=True))
def test_barycentric_weights_are_inverse_products_of_differences(points: list[int]) -> None:
    for i, weight in enumerate(field.barycentric(row(points)).tolist()):
        for j, other in enumerate(points):
            weight = weight * (points[i] - other) % P if j != i else weight
        assert weight == 1


@quick
@given(st.data(), st.lists(nonzero, min_size=1, max_size=8, unique=True), st.lists(elements, max_size=4))
def test_lagrange_evaluates_the_interpolating_polynomial(
    data: st.DataObject, nodes: list[int], targets: list[int]
) -> None:
    targets = [0, nodes[0], *targets]
    values = data.draw(st.lists(elements, min_size=len(nodes), max_size=len(nodes)))
    result = field.multiply(field.lagrange(row(nodes), row(targets)), row(values).reshape(-1, 1))
    assert result[:, 0].tolist() == [shamir.interpolate(nodes, values, x) for x in targets]
