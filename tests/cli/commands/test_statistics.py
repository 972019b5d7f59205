"""`dordis mean`: columns of a CSV file in, private means out, and nothing else of the file."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from dordis.cli.commands.statistics import mean, round_to_noise
from dordis.errors import InputError
from dordis.ledger.ledger import verify_ledger
from tests.cli.in_process import dordis

AGES = np.random.default_rng(0).integers(18, 90, 400)
INCOMES = np.random.default_rng(1).normal(3000, 500, 400).round(2)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    rows = [f"p{i},{age},{income}" for i, (age, income) in enumerate(zip(AGES, INCOMES, strict=True))]
    return write(tmp_path, "name,age,income", *rows)


def write(folder: Path, *lines: str) -> Path:
    path = folder / "people.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run(path: Path, *, epsilon=1.0, delta=None, bounds=(), columns=None, dropped=0, fidelity="ideal", as_json=False):
    mean(path, epsilon, delta, bounds, columns, dropped, fidelity, as_json)


def test_the_table_has_a_row_for_each_column_and_says_what_is_proved(people, capsys):
    run(people, columns="age,income", bounds=["0,120", "0,8000"])
    shown = capsys.readouterr().out
    for expected in (
        "Private mean over 400 clients",
        "age",
        "0 .. 120",
        "income",
        "0 .. 8000",
        "epsilon 1, delta 1e-05; 400 clients",
        "for one client, its whole row",
        "against a server that may deviate, with 1 of the clients",
        "no masks and no messages",
        "check for impossible sums: passed",
    ):
        assert expected in shown


def test_json_is_one_object_with_the_figures(people, capsys):
    run(people, columns="income,age", bounds=["0,8000", "0,120"], epsilon=2.0, delta=1e-6, dropped=40, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [column["name"] for column in told["columns"]] == ["income", "age"]
    assert set(told["columns"][0]) == {"name", "mean", "sigma", "low", "high"}  # all of it is public or private
    for column, values in zip(told["columns"], (INCOMES, AGES), strict=True):
        # Who dropped is not told: the mean over the others is off by a little more than the noise.
        spread = values.std() * math.sqrt(40 / 360 / 400)
        assert abs(column["mean"] - values.mean()) < 6 * math.hypot(column["sigma"], spread)
    assert (told["clients"], told["dropped"], told["delta"], told["fidelity"]) == (400, 40, 1e-6, "ideal")
    assert told["epsilon"] == pytest.approx(2.0)
    assert told["sum_check"] == "passed"


def test_without_bounds_a_part_of_the_budget_finds_them(people, capsys):
    run(people, columns="age", epsilon=8.0)
    assert "finding the bounds alone would have cost epsilon 2.11" in capsys.readouterr().out


def test_full_fidelity_runs_the_protocol(tmp_path, capsys):
    run(write(tmp_path, *"1234567"), bounds=["0,10"], fidelity="full")
    assert "every message of the protocol" in capsys.readouterr().out


def test_without_names_columns_are_numbered(tmp_path, capsys):
    run(write(tmp_path, "1,2", "", "3,4", "5,6"), bounds=["0,10"], columns="2", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert ([column["name"] for column in told["columns"]], told["clients"]) == (["2"], 3)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([""], "has no rows"),
        (["a,b"], "a header and no rows"),
        (["a,b", "1,2", "3", "4,5"], "line 3 of .* has 1 cells, the first line has 2"),
        (["a,b", "1,2", "3,secret", "4,5"], "line 3, column 'b' of .* is not a finite number"),
        (["a,b", "1,2", "3,", "4,5"], "line 3, column 'b'"),
        (["1", "nan", "3"], "line 2, column '1'"),
        (["a", "1", "inf", "3"], "line 3, column 'a'"),
        (["a", "1", "2"], "2 rows are too few"),
        (['a"b', '"1', "2"], "is not a CSV file"),
    ],
)
def test_a_file_that_is_no_table_of_numbers_is_refused_in_one_line(tmp_path, lines, reason):
    path = write(tmp_path, *lines)
    with pytest.raises(InputError, match=reason) as refusal:
        run(path, bounds=["0,3"])
    assert "\n" not in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_columns_of_the_same_name_are_told_apart_by_nothing(tmp_path, capsys):
    path = write(tmp_path, "a,a", "1,2", "1,2", "1,2")
    run(path, bounds=["0,3"])
    assert capsys.readouterr().out.count("│ a ") == 2
    with pytest.raises(InputError, match="several columns 'a'"):
        run(path, bounds=["0,3"], columns="a")


def test_names_are_shown_as_they_are(tmp_path, capsys):
    run(write(tmp_path, "[red]a,b[/]", *["1,2"] * 50), bounds=["0,10"])
    shown = capsys.readouterr().out
    assert "[red]a" in shown
    assert "b[/]" in shown


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_other_separators_are_read_too(tmp_path, mark, capsys):
    run(write(tmp_path, f"a{mark}b", *[f"1{mark}2"] * 50), bounds=["0,10"], as_json=True)
    assert [column["name"] for column in json.loads(capsys.readouterr().out)["columns"]] == ["a", "b"]


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        run(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="cannot read"):
        run(tmp_path)
    (tmp_path / "binary.csv").write_bytes(b"\x7fELF\x00\x80")
    with pytest.raises(InputError, match="is not a text file"):
        run(tmp_path / "binary.csv")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"columns": "age,height"}, "has no column 'height': its columns are name, age, income"),
        ({"columns": None}, "line 2, column 'name'"),
        ({"columns": "age", "bounds": ["0;1"]}, "--bounds takes numbers"),
        ({"columns": "age", "bounds": ["0,1,2"]}, "--bounds takes LOW,HIGH"),
        ({"columns": "age", "bounds": ["0,1", "0,1"]}, "--bounds takes LOW,HIGH"),
        ({"columns": "age", "bounds": ["1,0"]}, "below the upper one"),
        ({"columns": "age", "bounds": ["0,1"], "epsilon": -1.0}, "epsilon is a number above 0"),
        ({"columns": "age", "bounds": ["0,1"], "dropped": 399}, "may drop out"),
    ],
)
def test_unusable_options_are_refused(people, options, reason):
    with pytest.raises(InputError, match=reason):
        run(people, **options)


@pytest.mark.parametrize(
    ("value", "within", "expected"),
    [
        (39.7812, 0.4123, ("39.78", "0.41")),
        (33019.7, 288.0, ("33020", "288")),
        (0.0, 1e-12, ("0", "1e-12")),
        (2.0, 9.99, ("2.0", "10.0")),
        (-0.3, 19.0, ("0", "19")),
        (-9.48365e305, 1.6e306, ("-9.48365e+305", "1.6e+306")),
    ],
)
def test_figures_are_written_to_the_digits_that_mean_something(value, within, expected):
    assert round_to_noise(value, within) == expected


def test_rows_without_a_number_are_named_or_skipped_and_counted(tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_text("age\n" + "\n".join([*map(str, range(20, 60)), "nan", "unknown"]) + "\n")
    refused = dordis("mean", path, "--epsilon", "2", "--bounds", "0,100")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "line 42, column 'age'" in refused.stderr
    told = json.loads(dordis("mean", path, "--epsilon", "2", "--bounds", "0,100", "--skip-invalid", "--json").stdout)
    assert (told["skipped"], told["clients"]) == (2, 40)
    shown = dordis("histogram", path, "--epsilon", "2", "--edges", "40", "--skip-invalid").stdout
    assert "2 rows without a finite number were skipped" in shown


@pytest.mark.parametrize("query", [("mean", "--bounds", "0,100"), ("histogram", "--edges", "40")])
@pytest.mark.parametrize("fidelity", ["ideal", "full"])
def test_the_ledger_names_rows_of_the_file_whether_others_are_skipped_or_not(tmp_path, query, fidelity):
    command, *options = query
    ledger, path, mended = tmp_path / "ledger.jsonl", tmp_path / "gaps.csv", tmp_path / "mended.csv"
    cells = ["20", "nan", "22", "", "24", "many", "26", "27"]
    path.write_text("age,other\n" + "".join(f"{cell},1\n" for cell in cells))
    mended.write_text("age,other\n" + "".join(f"{40 if i == 1 else cell},1\n" for i, cell in enumerate(cells)))
    column = "--columns" if command == "mean" else "--column"
    how = (*options, column, "age", "--epsilon", "2", "--fidelity", fidelity, "--skip-invalid", "--ledger", ledger)
    for file in (path, mended):
        done = dordis(command, file, *how)
        assert done.returncode == 0, done.stderr
    charged = [json.loads(line)["charge"]["clients"] for line in ledger.read_text().splitlines() if '"charge"' in line]
    assert charged == [[1, 3, 5, 7, 8], [1, 2, 3, 5, 7, 8]]
    epsilons = verify_ledger(ledger).clients
    assert epsilons[2] == pytest.approx(2.0, rel=1e-3)  # asked once, and everybody else twice
    assert all(epsilons[u] > 2.5 for u in (1, 3, 5, 7, 8))


def test_the_example_of_the_readme_runs_as_it_stands():
    root = Path(__file__).parents[3]
    (line,) = re.findall(r"^dordis (mean .*?) +#", (root / "README.md").read_text(), re.MULTILINE)
    done = dordis(*line.split(), cwd=root)
    assert done.returncode == 0, done.stderr
    assert "salary" in done.stdout


def test_a_large_delta_is_warned_about(tmp_path: Path) -> None:
    file = tmp_path / "ages.csv"
    file.write_text("age\n" + "".join(f"{20 + i % 50}\n" for i in range(300)))
    arguments = ("mean", file, "--columns", "age", "--bounds", "0,100", "--epsilon", 1)
    assert "one over the clients" in dordis(*arguments, "--delta", 0.004, "--json").stdout
    assert "one over the clients" not in dordis(*arguments, "--json").stdout
