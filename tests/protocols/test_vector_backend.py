"""Vectors of the server in this process: uploads are added whole or not at all, and noise is removed exactly."""

from fractions import Fraction

import numpy as np
import pytest

from dordis.errors import InputError
from dordis.kernels.ring import pack
from dordis.privacy.skellam_noise import add_noise, noise
from dordis.protocols.vector_backend import Accumulator, Vectors

BITS, DIM = 13, 5


def test_an_accumulator_has_the_sum_and_its_clients():
    accumulator = Accumulator(DIM, BITS)
    for u in (3, 1):
        accumulator.add(u, pack(np.full(DIM, u, np.uint32), BITS))
    total, clients = accumulator.close()
    assert np.array_equal(total, np.full(DIM, 4))
    assert sorted(clients) == [1, 3]


def test_an_upload_of_another_length_changes_nothing():
    accumulator = Accumulator(DIM, BITS)
    accumulator.add(1, pack(np.ones(DIM, np.uint32), BITS))
    with pytest.raises(InputError):
        accumulator.add(2, pack(np.ones(DIM + 8, np.uint32), BITS))
    total, clients = accumulator.close()
    assert np.array_equal(total, np.ones(DIM))
    assert list(clients) == [1]


def test_noise_is_removed_component_by_component():
    components = [(bytes([k]) * 32, Fraction(50 + k)) for k in range(3)]
    total = sum((noise(seed, variance, DIM) for seed, variance in components), np.zeros(DIM, np.int64))
    ring = (total % 2**32).astype(np.uint32)
    Vectors().remove_noise(ring, components, add_noise)
    assert not ring.any()
