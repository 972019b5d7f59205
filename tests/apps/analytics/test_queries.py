"""Private statistics in one line: what they tell, how far off it is, and that nothing else of the values shows."""

import hashlib
import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian, get_sigma_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

import dordis
from dordis.apps.analytics import bounds as bounding
from dordis.apps.analytics.bounds import LEAST, MOST, WIDTH, Bounds, find_bins, find_bounds, quantile, select_bounds
from dordis.apps.analytics.private_sum import (
    Conditions,
    QueryBudget,
    check_values,
    expected_sigma,
    one_hot,
    plan_release,
)
from dordis.errors import InputError
from dordis.kernels.reals import sum_integer_squares
from dordis.privacy.accounting import ALL_ROUNDS, ParticipationSchedule, default_delta
from dordis.privacy.encoding import centre
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting

AGES = np.random.default_rng(0).integers(18, 90, 1200).astype(float)
TABLE = np.random.default_rng(1).normal([3.0, -40.0, 0.0], [1.0, 10.0, 1.0], (300, 3))


class Entropy:
    """Bytes that are the same in every test, and different in every call."""

    def __init__(self, seed=b""):
        self._seed, self._calls = seed, 0

    def __call__(self, size):
        self._calls += 1
        return hashlib.shake_256(self._seed + b"/%d" % self._calls).digest(size)


def test_the_mean_is_off_by_what_sigma_says():
    table, bounds = np.tile(TABLE, 100), np.tile([[-1, 7], [-90, 10], [-6, 6]], (100, 1))
    result = dordis.mean(table, epsilon=2, bounds=bounds, entropy=Entropy())
    errors = (result.mean - table.mean(axis=0)) / result.sigma
    assert abs(errors.mean()) < 6 / math.sqrt(errors.size)
    assert errors.var() == pytest.approx(1, abs=6 * math.sqrt(2 / errors.size))


def test_counts_are_off_by_what_sigma_says():
    ages = np.tile(AGES[:300, None], 75)
    true = np.histogram(AGES[:300], [-np.inf, 30, 50, 70, np.inf])[0]
    result = dordis.histogram(ages, epsilon=2, edges=[30, 50, 70], entropy=Entropy())
    assert result.frequencies.sum(axis=1) == pytest.approx(1)
    assert (result.frequencies >= 0).all()
    errors = (result.counts - true) / result.sigma
    assert errors.var() == pytest.approx(1, abs=6 * math.sqrt(2 / errors.size))


def test_a_single_column_gives_numbers_and_a_table_gives_arrays():
    one, many = (dordis.mean(v, epsilon=1, bounds=(0, 100)) for v in (AGES, np.stack([AGES, AGES], axis=1)))
    assert isinstance(one.mean, float)
    assert isinstance(one.sigma, float)
    assert one.bounds == (0.0, 100.0)
    assert many.mean.shape == many.sigma.shape == many.bounds[0].shape == (2,)
    result = dordis.histogram(np.stack([AGES, AGES], axis=1), epsilon=1, edges=[30, 60])
    true = np.histogram(AGES, [-np.inf, 30, 60, np.inf])[0]
    assert result.counts.shape == result.frequencies.shape == (2, 3)
    assert (np.abs(result.counts - true) < 6 * result.sigma).all()


def test_noise_is_in_proportion_to_the_bounds_of_a_column():
    result = dordis.mean(TABLE, epsilon=1, bounds=[(-1, 7), (-90, 10), (-6, 6)])
    np.testing.assert_allclose(result.sigma / result.sigma[0], [1, 12.5, 1.5])


def test_what_is_proved_is_what_the_planner_proves():
    result = dordis.mean(AGES, epsilon=1.5, bounds=(0, 100))
    once = ParticipationSchedule(len(AGES), len(AGES), 1, accounting=ALL_ROUNDS)
    planned = plan(Setting(once, dim=1, clip=1.0), 1.5)
    assert result.epsilon == pytest.approx(1.5, rel=1e-6)
    assert result.epsilon <= 1.5
    assert result.delta == default_delta(len(AGES)) == planned.setting.given_delta
    # Its noise on the sum is the planner's, and what makes up for one colluder.
    assert result.sigma == pytest.approx(50 * planned.sigma / len(AGES), rel=0.01)


def test_a_given_delta_is_kept():
    assert dordis.mean(AGES, epsilon=1, delta=1e-7, bounds=(0, 100)).delta == 1e-7


@pytest.mark.slow
def test_the_parts_of_the_budget_add_up():
    """The oracle is Gaussian noise by dp-accounting: bounds get a tenth of 1 / sigma^2, so sqrt(10) times the noise."""
    result, delta = dordis.mean(AGES, epsilon=2, entropy=Entropy()), default_delta(len(AGES))
    alone = get_epsilon_gaussian(math.sqrt(10) * get_sigma_gaussian(2.0, delta), delta)
    assert result.epsilon_for_bounds == pytest.approx(alone, rel=1e-4)
    assert 1.9999 < result.epsilon <= 2
    assert result.delta == delta
    given = dordis.mean(AGES, epsilon=2, bounds=result.bounds)
    assert result.sigma == pytest.approx(given.sigma / math.sqrt(0.9), rel=1e-3)
    assert dordis.mean(AGES, epsilon=2, bounds=(0, 128)).epsilon_for_bounds == 0


@pytest.mark.slow
def test_the_mean_without_bounds_is_within_found_ones():
    result = dordis.mean(np.stack([AGES, -AGES, AGES - 54], axis=1), epsilon=3, entropy=Entropy())
    assert (result.bounds[0].tolist(), result.bounds[1].tolist()) == ([0, -128, -64], [128, 0, 64])
    assert (np.abs(result.mean - [AGES.mean(), -AGES.mean(), AGES.mean() - 54]) < 6 * result.sigma).all()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_value_is_in_the_bin_of_the_least_power_of_two_that_holds_it(value):
    place = int(find_bins(np.array([value]))[0])
    side, exponent = divmod(place, WIDTH // 2)
    exponent += LEAST
    assert side == (value < 0)
    assert abs(value) <= 2.0**exponent or exponent == MOST
    assert abs(value) > 2.0 ** (exponent - 1) or exponent == LEAST


def test_noise_alone_finds_no_bounds():
    noise = np.random.default_rng(5).normal(size=(300, WIDTH))
    for row in noise:
        with pytest.raises(InputError, match="column 0"):
            select_bounds(row[None] * 20, sigma=20.0)
    assert quantile(1) == pytest.approx(4.857, abs=0.001)  # the normal quantile of 1e-4 / 168


def test_bounds_reach_to_the_last_bin_that_stands_out_and_on_while_bins_are_not_empty():
    counts = np.zeros((1, WIDTH))
    counts[0, [-LEAST + 3, -LEAST + 4, -LEAST + 5, -LEAST + 7]] = [500, 41, 42, 90]
    found = select_bounds(counts, sigma=20.0)
    assert (found.low.tolist(), found.high.tolist()) == ([0.0], [32.0])
    counts[0, [WIDTH // 2 - LEAST + 1, WIDTH - 1]] = [200, 200]
    assert select_bounds(counts, sigma=20.0).low.tolist() == [-(2.0**MOST)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [b"1", b"2", b"3", b"4", b"5"])
def test_one_client_moves_no_bounds_unless_noise_is_at_a_threshold(seed):
    """The same noise on neighbouring tables: one client's counts are all that differs."""
    other = AGES.copy()
    other[7] = -1e12
    one, two = (
        find_bounds(values[:, None], QueryBudget(1.0, 1e-6), Conditions(entropy=Entropy(seed)))[0]
        for values in (AGES, other)
    )
    assert (one.low.tolist(), one.high.tolist()) == (two.low.tolist(), two.high.tolist())
    assert one.high[0] >= 128


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-1e300, 1e300), min_size=3, max_size=3))
def test_no_row_is_longer_than_the_noise_provides_for(row):
    """Whatever a client holds, its input in integers keeps to Delta2, which is what replacing it by zero changes."""
    found = Bounds(np.array([-1.0, 0.0, 5.0]), np.array([1.0, 1e6, 5.5]))
    planned = plan_release(50, 3, math.sqrt(3), QueryBudget(1.0, 1e-6), Conditions())
    update = found.scaled(np.array([row]))[0]
    assert np.linalg.norm(update) <= math.sqrt(3) * (1 + 1e-12)
    encoded = planned.mechanism.encode(update, bytes(32))
    assert sum_integer_squares(centre(encoded, planned.mechanism.grid.bits)) <= planned.plan.sensitivity.squared


def test_an_indicator_has_one_one_for_each_column():
    update = one_hot(np.array([[0, 2], [1, 1]]), width=3)
    assert update(0).tolist() == [1, 0, 0, 0, 0, 1]
    assert np.linalg.norm(update(1)) == pytest.approx(math.sqrt(2))


@pytest.mark.slow
def test_randomness_does_not_depend_on_the_values():
    """Both tables are clipped to the same, so that with the same bytes the results are the same."""
    one, two = (dordis.mean(v, epsilon=1, bounds=(0, 1), entropy=Entropy(b"same")) for v in (AGES, 1000 * AGES))
    assert one.mean == two.mean


@pytest.mark.parametrize("fidelity", ["ideal", "full"])
def test_clients_who_drop_are_not_in_the_mean_and_change_no_guarantee(fidelity):
    values = np.full(12, 0.5)
    result = dordis.mean(values, epsilon=3, bounds=(0, 1), dropped=3, fidelity=fidelity)
    assert (result.clients, result.dropped, result.fidelity) == (12, 3, fidelity)
    assert result.epsilon == dordis.mean(values, epsilon=3, bounds=(0, 1)).epsilon
    assert abs(result.mean - 0.5) < 6 * result.sigma


@pytest.mark.slow
def test_bounds_are_found_by_the_whole_protocol_too():
    result = dordis.mean(np.linspace(1, 60, 40), epsilon=40, fidelity="full", dropped=2)
    assert result.bounds[0] <= 0 < 64 <= result.bounds[1]
    assert (result.fidelity, result.dropped) == ("full", 2)


def test_more_dropouts_than_the_noise_tolerates_are_refused():
    with pytest.raises(InputError, match="0 to 4 may drop out, not 5"):
        dordis.mean(np.zeros(12), epsilon=1, bounds=(0, 1), dropped=5)


@pytest.mark.parametrize("mode", ["malicious", "semi-honest"])
def test_full_fidelity_has_the_error_of_ideal(mode):
    values = np.linspace(0, 1, 8 * 64).reshape(8, 64)
    results = {
        fidelity: dordis.mean(values, epsilon=2, bounds=(0, 1), fidelity=fidelity, mode=mode)
        for fidelity in ("ideal", "full")
    }
    full, ideal = results["full"], results["ideal"]
    np.testing.assert_allclose(full.sigma, ideal.sigma)
    assert (full.epsilon, full.delta) == (ideal.epsilon, ideal.delta)
    for result in results.values():
        errors = (result.mean - values.mean(axis=0)) / result.sigma
        assert errors.var() == pytest.approx(1, abs=6 * math.sqrt(2 / errors.size))


def test_bins_divide_the_bounds_evenly_and_hold_what_is_beyond():
    result = dordis.histogram([-5, 1, 9, 99] * 100, bins=5, bounds=(0, 10), epsilon=4)
    assert result.edges.tolist() == [2, 4, 6, 8]
    assert (np.abs(result.counts - [200, 0, 0, 0, 200]) < 6 * result.sigma).all()
    found = dordis.histogram(AGES, bins=4, epsilon=3, entropy=Entropy())
    assert (found.bounds, found.edges.tolist()) == ((0.0, 128.0), [32, 64, 96])


def test_the_result_shows_itself_and_its_terms():
    result = dordis.mean(AGES, epsilon=1, bounds=(0, 100))
    assert repr(result).startswith(f"PrivateMean(mean={result.mean:.4g}, sigma={result.sigma:.4g}, bounds=(0, 100), ")
    assert any("replaced by zero" in term for term in result.terms)
    assert any("may deviate, with 1 of the clients" in term for term in result.terms)
    with pytest.raises(AttributeError):
        result.epsilon = 0.0


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0, math.nan, 3.0], "row 1, column 0 .* NaN or infinite"),
        ([[1.0, 2.0], [3.0, 4.0], [5.0, -math.inf]], "row 2, column 1 .* NaN or infinite"),
        ([[1, 2], [3, "4"], [5, 6]], "row 1, column 1 .*is not a number"),
        (np.array([[1, 2], [3, None], [5, 6]], object), "row 1, column 1 .*is not a number"),
        ([1, 2j, 3], "row 1, column 0 .*is not a number"),
        ([[1, 2], [3, 4], [5]], "row 2 .*differs"),
        ([[1], [3, 4], [5]], "row 1 .*differs"),
        (np.array(["1", "2", "3"]), "row 0, column 0 .*is not a number"),
        ([1.0, 2.0], "2 rows are too few"),
        ([], "0 rows are too few"),
        ([[], [], []], "rows are empty"),
        (np.zeros((3, 3, 3)), "3-dimensional"),
        (5.0, "0-dimensional"),
        ("salaries.csv", "not a str: read a file first"),
        ({"age": [20, 30, 40]}, "not a dict: read a file first"),
        (np.zeros(20_000), "has at most 16,384 clients, not 20,000: give one row for each hospital"),
    ],
)
def test_values_that_are_not_numbers_are_refused(values, reason):
    with pytest.raises(InputError, match=reason):
        dordis.mean(values, epsilon=1, bounds=(0, 1))


def test_numbers_of_any_kind_are_taken():
    for values in ([True, False, True], [1, 2, 3], np.array([1, 2.5, 3], object), np.float32([1, 2, 3])):
        rows, single = check_values(values)
        assert (rows.shape, rows.dtype, single) == ((3, 1), np.float64, True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"epsilon": 0}, "epsilon is a number above 0, not 0"),
        ({"delta": 1.5}, "delta is a number between 0 and 1"),
        ({"bounds": (1, 1)}, "below the upper one"),
        ({"bounds": (0, math.inf)}, r"bounds must be finite, .*, not \[0.0, inf\]"),
        ({"bounds": (0, [1, 2])}, "one pair"),
        ({"bounds": 3}, "one pair \\(low, high\\)"),
        ({"fidelity": "real"}, "'ideal' or 'full'"),
        ({"mode": "trusted"}, "'malicious' or 'semi-honest'"),
        ({"colluders": 12}, "12 colluders"),
        ({"dropped": -1}, "may drop out"),
        ({"dropped": 0.2}, "dropped is the number of clients that drop out, a whole number, not 0.2"),
        (
            {"bounds": None},
            "12 clients and a share of 0.1 of epsilon 1 are not enough to find the bounds",
        ),
    ],
)
def test_unusable_options_are_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        dordis.mean(np.zeros(12), **{"epsilon": 1, "bounds": (0, 1), **options})


@pytest.mark.parametrize(
    "options",
    [{}, {"bins": 1}, {"bins": [1, 2]}, {"bins": 3, "edges": [1]}, {"edges": [2, 1]}, {"edges": ["a"]}, {"edges": []}],
)
def test_unusable_bins_are_refused(options):
    with pytest.raises(InputError):
        dordis.histogram(np.zeros(12), epsilon=1, **options)


def test_three_clients_are_enough():
    result = dordis.mean([0.0, 0.5, 1.0], epsilon=8, bounds=(0, 1))
    assert abs(result.mean - 0.5) < 6 * result.sigma


@pytest.mark.parametrize(("clients", "dim", "epsilon"), [(3, 1, 0.01), (3, 1, 300.0), (5000, 1, 50.0), (20, 122, 0.1)])
def test_the_grid_is_fine_and_its_noise_can_be_drawn(clients, dim, epsilon):
    """Rounding adds little, and sigma is hardly more than on the finest grid."""
    planned = plan_release(clients, dim, 1.0, QueryBudget(epsilon, 1e-6), Conditions())
    once = ParticipationSchedule(clients, clients, 1, accounting=ALL_ROUNDS)
    finest = plan(Setting(once, dim, 1.0, 1e-6, bits=32), epsilon)
    left = float(planned.plan.noise.variance_left(range(clients), b""))
    assert left <= 1e10
    assert planned.plan.sigma < 1.03 * finest.sigma
    assert expected_sigma(planned) < 1.03 * math.sqrt(left) / planned.plan.scale


def test_bounds_that_nearly_overflow_are_kept():
    found = bounding.read_bounds((-1e308, 1e308), 1)
    assert found.scaled(np.array([[1e308], [-1e308], [0.0]])).ravel().tolist() == [1, -1, 0]


def test_columns_keep_their_names_and_name_what_is_wrong():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": np.arange(20.0, 70.0), "height": np.linspace(1, 2, 50)}, columns=["height", "age"])
    result = dordis.mean(frame, epsilon=3, bounds=(0, 100))
    assert result.columns == ("height", "age")
    assert dordis.mean(np.asfortranarray(frame.to_numpy()), epsilon=3, bounds=(0, 100)).columns == ()
    frame.loc[7, "age"] = np.nan
    with pytest.raises(InputError, match=r"row 7 \(counted from 0\), column 'age' is NaN"):
        dordis.mean(frame, epsilon=3, bounds=(0, 100))


@pytest.mark.parametrize("budget", [{"epsilon": "1"}, {"epsilon": 1.0, "delta": "small"}, {"epsilon": None}])
def test_a_budget_that_is_no_number_is_one_line(budget):
    with pytest.raises(InputError, match="is a number"):
        dordis.mean(range(10), bounds=(0, 10), **budget)


def test_values_that_cannot_be_an_array_are_refused():
    """A torch tensor with a gradient is such a value."""

    class Tensor:
        def __array__(self, *args, **options):
            raise RuntimeError("use detach()")

    with pytest.raises(InputError, match=r"cannot be read as an array: use detach\(\)"):
        dordis.mean(Tensor(), epsilon=1.0, bounds=(0, 1))


@pytest.mark.parametrize("value", [1.7e12, 1.7e18], ids=["milliseconds since 1970", "nanoseconds since 1970"])
def test_bounds_are_found_for_times(value):
    answer = dordis.mean(np.full(5000, value), epsilon=6.0, entropy=Entropy())
    assert abs(answer.mean - value) < 6 * answer.sigma < value / 10
