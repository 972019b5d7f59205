"""The benchmarks run, and print what they promise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import kernels
from benchmarks.figure import Figure
from benchmarks.timing import ratio, side_by_side

OPTIONAL = {"flwr_mask_ratio", "shamir_vs_pycryptodome"}
ONLY_IN_FULL = {"cold_start_s"}


def test_a_quick_run_prints_every_figure_as_one_flat_json_object():
    command = [sys.executable, "-m", "benchmarks", "kernels", "--json", "--quick"]
    run = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True)
    values = json.loads(run.stdout)
    assert set(kernels.FIGURES) - OPTIONAL - ONLY_IN_FULL <= set(values) <= set(kernels.FIGURES)
    assert all(type(value) is float and value > 0 for value in values.values())


def test_the_best_of_each_side_is_kept_and_the_first_turn_is_not_counted():
    ticks = iter([0, 5, 5, 7, 7, 8, 8, 20])  # sides take 5 and 2, then 1 and 12
    calls = []
    works = [lambda: calls.append("a"), lambda: calls.append("b")]
    assert side_by_side(works, 2, lambda: next(ticks)) == [1, 2]
    assert calls == ["a", "b"] * 3


def test_a_ratio_says_how_much_faster_the_subject_is():
    ticks = iter([0, 6, 6, 8])
    assert ratio(lambda: None, lambda: None, 1, lambda: next(ticks)) == 3


@pytest.mark.parametrize(
    ("figure", "passing", "failing"),
    [(Figure("", at_least=2), 2, 1.9), (Figure("", at_most=2), 2, 2.1)],
)
def test_a_bar_is_cleared_when_it_is_reached(figure, passing, failing):
    assert figure.met_by(passing)
    assert not figure.met_by(failing)
