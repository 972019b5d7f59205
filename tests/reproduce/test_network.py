"""Additional traffic: the paper's formula gives the paper's figures, and ours are counted."""

from fractions import Fraction

import pytest

from dordis.errors import InputError
from dordis.privacy.xnoise_components import Scheme
from reproduce import network as experiment
from reproduce.network import (
    MEBI,
    PAPER_REBASING,
    PAPER_XNOISE,
    Row,
    additional_bytes,
    count,
    count_dropped,
    rebasing_megabytes,
)


def test_the_formula_gives_every_figure_that_the_paper_prints():
    for (rate, n), printed in PAPER_XNOISE.items():
        assert round(additional_bytes(n, count_dropped(n, rate)) / MEBI, 1) == printed
    for weights, printed in PAPER_REBASING.items():
        assert round(rebasing_megabytes(weights)["formula"], 1) == printed


@pytest.fixture(scope="module")
def counted():
    return {scheme: count(10, scheme, [0, 3]) for scheme in (Scheme.ORIG, Scheme.SINGLE, Scheme.EXACT)}


def test_exact_sends_a_share_of_each_seed_to_each_peer_and_single_one_only(counted):
    orig, single, exact = (counts[0]["_up"] for counts in counted.values())
    seeds = 10 - experiment.least_majority(10)
    assert exact - orig == pytest.approx(seeds * (single - orig), rel=0.25)
    assert exact - orig > 9 * seeds * 32  # ciphertexts of shares, for nine peers


def test_who_does_not_answer_costs_the_others_shares_of_its_seeds(counted):
    for scheme in (Scheme.SINGLE, Scheme.EXACT):
        assert counted[scheme][0]["_worst_up"] > counted[scheme][0]["_up"]
    exact = counted[Scheme.EXACT]
    assert exact[1]["_worst_up"] < exact[0]["_worst_up"]  # the more drop, the less is due


def test_the_vector_does_not_count(monkeypatch, counted):
    monkeypatch.setattr(experiment, "LENGTH", 500)
    (orig,), (single,) = (count(10, scheme, [0]) for scheme in (Scheme.ORIG, Scheme.SINGLE))
    for case in ("", "_up"):
        assert single[case] - orig[case] == counted[Scheme.SINGLE][0][case] - counted[Scheme.ORIG][0][case]


def test_the_data_has_every_size_rate_and_number_of_clients():
    rows = experiment.compare_traffic([8]).data
    assert len(rows) == 3 * 4
    for row in rows:
        assert row["rebasing_paper"] == pytest.approx(row["rebasing_formula"], abs=0.05)
        assert 0 < row["single_up"] < row["single"] < row["exact"]
        assert 0 < row["single_worst_up"] < row["single_worst"] < row["exact_worst"]
        assert row["xnoise_paper"] is None


def test_the_table_and_the_chart_have_the_papers_figures_beside_ours(monkeypatch):
    ours = {f"{scheme}{case}": 0.5 for scheme in ("single", "exact") for case in ("", "_up", "_worst", "_worst_up")}
    rates = [Fraction(d, 10) for d in range(4)]
    rows = [Row(r, 300, PAPER_XNOISE[r, 300], additional_bytes(300, int(r * 300)) / MEBI, ours) for r in rates]
    monkeypatch.setattr(experiment, "count_rows", lambda clients, report: rows)
    shown = experiment.compare_traffic([300])
    rebasing, xnoise = ([list(column.cells) for column in table.columns] for table in shown.tables)
    *rebasing, model, projected = rebasing
    assert projected == ["0.2"] * 3  # it hardly grows with the model
    assert rebasing == [["5M", "50M", "500M"], *[["11.9", "119.2", "1192.1"]] * 2, ["12.0", "119.2", "1192.2"]]
    assert model == [f"{4 * size / MEBI:.1f}" for size in (5e6, 50e6, 500e6)]
    assert xnoise[:4] == [["0%", "10%", "20%", "30%"], ["300"] * 4, *[["5.5", "5.3", "5.2", "5.2"]] * 2]
    ((name, chart),) = shown.charts
    assert (name, chart.categories) == ("network", ("300",))


def test_too_few_clients_are_refused():
    with pytest.raises(InputError, match="at least 4"):
        experiment.compare_traffic([3])
