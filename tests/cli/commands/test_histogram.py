"""`dordis histogram`: a column of a CSV file in, private counts out."""

import json
from pathlib import Path

import numpy as np
import pytest

from dordis.cli.commands.statistics import BAR_WIDTH, draw_bar, histogram
from dordis.errors import InputError
from tests.cli.in_process import dordis

AGES = np.random.default_rng(0).integers(18, 90, 400)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text("age,name\n" + "".join(f"{age},somebody\n" for age in AGES), encoding="utf-8")
    return path


def run(path: Path, *, epsilon=1.0, edges=None, bins=None, bounds=None, column="age", dropped=0, as_json=False):
    histogram(path, epsilon, edges, bins, bounds, column, dropped=dropped, as_json=as_json)


def test_the_table_has_a_bar_for_each_bin_and_says_what_is_proved(people, capsys):
    run(people, edges="30,60")
    shown = capsys.readouterr().out
    for expected in ("Private histogram of age over 400 clients", "below 30", "30 .. 60", "60 and above"):
        assert expected in shown
    assert "█" * BAR_WIDTH in shown
    assert "epsilon 1, delta 1e-05; 400 clients" in shown
    assert "with 1 of the clients" in shown


def test_bins_between_bounds_are_named_by_their_ends(people, capsys):
    run(people, bins=3, bounds="0,90")
    shown = capsys.readouterr().out
    assert all(label in shown for label in ("0 .. 30", "30 .. 60", "60 .. 90"))


def test_ends_of_narrow_bins_do_not_look_alike(people, capsys):
    run(people, edges="1000000,1000001")
    shown = capsys.readouterr().out
    assert all(label in shown for label in ("below 1000000", "1000000 .. 1000001", "1000001 and above"))


def test_json_is_one_object_with_the_counts(people, capsys):
    run(people, edges="30,60", epsilon=4.0, as_json=True)
    told = json.loads(capsys.readouterr().out)
    true = np.histogram(AGES, [-np.inf, 30, 60, np.inf])[0]
    assert (np.abs(np.array(told["counts"]) - true) < 6 * told["sigma"]).all()
    assert sum(told["frequencies"]) == pytest.approx(1)
    assert (told["column"], told["edges"], told["bounds"], told["clients"]) == ("age", [30, 60], None, 400)
    assert told["sum_check"] == "passed"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"edges": "1,0"}, "ascend"),
        ({"edges": "1,x"}, "--edges takes numbers"),
        ({}, "either edges, or a number of bins"),
        ({"edges": "1", "bins": 3}, "either edges, or a number of bins"),
        ({"edges": "1", "column": "name"}, "line 2, column 'name'"),
        ({"edges": "1", "column": "height"}, "no column 'height'"),
        ({"bins": 3, "bounds": "3"}, "LOW,HIGH"),
    ],
)
def test_unusable_options_are_refused(people, options, reason):
    with pytest.raises(InputError, match=reason):
        run(people, **options)


def test_of_several_columns_one_is_chosen(tmp_path):
    (tmp_path / "two.csv").write_text("a,b\n1,2\n3,4\n5,6\n", encoding="utf-8")
    with pytest.raises(InputError, match="choose one with --column, of a, b"):
        run(tmp_path / "two.csv", edges="1", column=None)


def test_bars_are_drawn_to_an_eighth():
    assert (draw_bar(0), draw_bar(1), draw_bar(1.5 / BAR_WIDTH)) == ("", "█" * BAR_WIDTH, "█▌")


def test_of_very_many_bins_the_fullest_are_shown(tmp_path):
    path = tmp_path / "values.csv"
    path.write_text("value\n" + "\n".join(["7.5"] * 50) + "\n")
    shown = dordis("histogram", path, "--epsilon", "8", "--bins", "1000", "--bounds", "0,1000")
    assert shown.returncode == 0, shown.stderr
    assert "the 40 fullest of 1,000 bins" in shown.stdout
    assert shown.stdout.count("│\n") < 60
    assert "7 .. 8" in shown.stdout


def test_a_large_delta_is_warned_about(tmp_path: Path) -> None:
    path = tmp_path / "ages.csv"
    path.write_text("age\n" + "".join(f"{20 + i % 50}\n" for i in range(300)))
    arguments = ("histogram", path, "--edges", "30,60", "--epsilon", 1)
    assert "one over the clients" in dordis(*arguments, "--delta", 0.004, "--json").stdout
    assert "one over the clients" not in dordis(*arguments, "--json").stdout


def test_labels_of_times_in_milliseconds_are_not_cut_at_eighty_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path, first = tmp_path / "times.csv", 1_700_000_000_000
    path.write_text("stamp\n" + "".join(f"{first + 1000 * i}\n" for i in range(500)))
    shown = dordis("histogram", path, "--epsilon", "8", "--bins", "12", "--bounds", f"{first},{first + 86_400_000}")
    assert "…" not in shown.stdout
    assert "1.700079e+12 .. 1.700086e+12" in shown.stdout
    assert "█" in shown.stdout
    assert max(map(len, shown.stdout.split("epsilon")[0].splitlines())) <= 80
