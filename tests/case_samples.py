"""Samples of test cases: `make test` runs a few of many similar cases, and the slow tests run the others."""

from collections.abc import Sequence
from typing import Any

import pytest


def sample_cases(cases: Sequence[Any], one_in: int) -> list[Any]:
    """Return the cases as parameters of a test; all but every `one_in`-th case are marked as slow."""
    parameters = []
    for place, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        parameters.append(pytest.param(*values, marks=pytest.mark.slow if place % one_in else ()))
    return parameters
