"""All selection methods: indices, and the probability of too many colluders."""

from dataclasses import replace
from fractions import Fraction

import pytest

from dordis.errors import (
    InputError,
    InvalidProof,
    ParametersRefused,
    ProtocolError,
)
from dordis.selection.balanced import BalancedSelection
from dordis.selection.beacon import SeedBeacon
from dordis.selection.selection import UniformSelection, draw_failure_probability
from dordis.selection.vrf import VrfSelection
from tests.runs.cohorts import RUN, registry_of

REFUSALS = (ProtocolError, InvalidProof, ParametersRefused)
BEACON = SeedBeacon(b"beacon of tests/federation......")
EVERYONE = tuple(range(1, 31))
REGISTRY = registry_of(*EVERYONE)
METHODS = (
    UniformSelection(5, bytes(32)),
    BalancedSelection(REGISTRY, RUN, 12, 8),
    VrfSelection(REGISTRY, RUN, Fraction(30), 3, BEACON),
)


@pytest.mark.parametrize("index", [-1, 2**64])
def test_an_index_that_no_round_has_is_refused(index):
    for strategy in METHODS:
        with pytest.raises(InputError, match="index"):
            strategy.select(index, EVERYONE)


def test_a_bad_draw_has_a_chance_where_public_randomness_draws():
    chances = [draw_failure_probability(strategy) for strategy in (*METHODS, replace(METHODS[1], beacon=BEACON))]
    assert chances == [0, 0, Fraction(1, 2**40), Fraction(1, 2**40)]
