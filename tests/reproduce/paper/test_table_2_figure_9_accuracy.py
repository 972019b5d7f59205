"""Table 2: differences over seeds with their standard error, and progress of curves."""

import pytest

from reproduce.paper.table_2_figure_9_accuracy import RATES, TASKS, differences, label, overspent, rounds_to_half


def test_differences_are_paired_by_seed_and_have_a_standard_error() -> None:
    femnist, _, reddit = TASKS
    results = {
        label(task, noise, 0.4, seed): {"metric": [value + seed / 100]}
        for task, values in ((femnist, {"orig": 0.9, "xnoise": 0.89}), (reddit, {"orig": 200.0, "xnoise": 210.0}))
        for noise, value in values.items()
        for seed in task.seeds
    }
    mean, error = differences(results, femnist, 0.4)
    assert (mean, error) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))
    assert differences(results, reddit, 0.4)[0] == pytest.approx(5.0, abs=0.01)


def test_orig_spends_more_than_six_at_40_percent() -> None:
    assert overspent(TASKS[0], RATES[-1]) > 7


@pytest.mark.parametrize(("values", "rises", "expected"), [((0, 2, 6, 8), True, 3), ((8.0, 5.0, 3.9, 2.0), False, 2)])
def test_half_of_the_progress_is_found(values: tuple[float, ...], rises: bool, expected: int) -> None:
    assert rounds_to_half(values, rises) == expected
