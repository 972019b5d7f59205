"""The benchmarks run, and print what they promise."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import held_out_texts
from benchmarks.__main__ import SUITES
from benchmarks.figure import Figure
from benchmarks.held_out import PARTS, held_out, save
from benchmarks.timing import ratio, side_by_side
from dordis.apps.learning.formats import UserData, read_npz, read_users
from dordis.apps.learning.partitioned_data import Dataset

NOT_IN_EVERY_RUN = {  # figures of full runs, and of packages that need not be installed
    "kernels": r"cold_start_s|flwr_.*|shamir_vs_pycryptodome",
    "assisted": r"assisted_n10000_.*|assisted_growth_n10000_.*",
    "privacy": r"",
    "simulation": r"flwr_.*|vs_flwr",
    "refusals": r"",
    "possible": r"",
    "network": r"",
    "evaluation": r"writers_.*",
    "watching": r"",
    "learning": r"flwr_.*|cnn_(cpu_)?vs_flwr|.*_vs_pfl.*",
    "flower": r".*",
    "ray": r".*",
    "records": r".*",
    "pipeline": r"rss_m1_.*|rss_m8_(d9M_mb|over_m1|n16_over_n8|bytes_per_coordinate)|modelled_over_real_.*",
    "aggregation": r"flwr_.*|plus_.*|unfolded_.*|xnoise_mb_[23]00|xnoise_exact_.*|xnoise_.*_overhead|rss_n100_d11M_mb"
    r"|growth_n(64|128|300)_.*|growth_d(4M|11M)_.*",
}


IN_CI = ("kernels", "privacy", "refusals", "possible")
"""Suites that take seconds; the others take minutes even when quick, and belong to `make evidence`."""


@pytest.mark.parametrize(
    "suite",
    [pytest.param(suite, marks=pytest.mark.slow if suite in IN_CI else pytest.mark.evidence) for suite in SUITES],
)
def test_a_quick_run_prints_every_figure_as_one_flat_json_object(suite):
    if suite in ("learning", "evaluation"):
        pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    command = [sys.executable, "-m", "benchmarks", suite, "--json", "--quick"]
    run = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True)
    values = json.loads(run.stdout)
    figures = set(SUITES[suite].FIGURES)
    assert {name for name in figures if not re.fullmatch(NOT_IN_EVERY_RUN[suite], name)} <= set(values) <= figures
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


@pytest.mark.parametrize("keys", [np.arange(120) // 5, None])
def test_what_is_held_out_is_training_data_of_clients_that_do_not_train(keys, tmp_path):
    x, test = np.arange(120.0)[:, None], np.full((30, 1), -1.0)
    chosen = held_out(Dataset(x, np.arange(120) % 2, test, np.zeros(30, np.int64), keys=keys, outputs=2))
    save(chosen, tmp_path / "held_out.npz")
    found = read_npz(tmp_path / "held_out.npz")
    assert sorted(np.concatenate([found.x_train, found.x_test]).ravel()) == sorted(x.ravel())
    assert len(found.x_test) == 120 // PARTS
    if keys is not None:
        assert not {*found.keys} & {*(found.x_test.ravel() // 5)}


def test_texts_are_held_out_by_users_and_with_all_they_wrote(tmp_path):
    users = {f"u{u}": UserData(x=[f"line {u}"], y=["x"]) for u in range(25)}
    stay, test = held_out_texts.held_out(users)
    assert (len(test), len(stay)) == (2, 23)
    assert stay | test == users
    held_out_texts.save(test, tmp_path / "test")
    assert dict(read_users(tmp_path / "test")) == test
