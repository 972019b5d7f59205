"""Descriptions of tables: what they must say, and the one message for everything that is missing."""

import tomllib

import msgspec
import numpy as np
import pytest

from dordis.apps.tables import Encoder, Table
from dordis.apps.tables.columns import as_columns
from dordis.apps.tables.description import template, write_template
from dordis.errors import InputError

ROWS = {"age": [34, 51], "blood pressure": [120, 140], "city": ["Bonn", "Ulm"], "smokes": [True, False], "ill": [0, 1]}


def test_one_message_names_every_column_without_a_range_or_categories():
    with pytest.raises(InputError) as error:
        Encoder.from_columns(Table(label="ill"), as_columns(ROWS, "patients.csv"))
    text = str(error.value)
    assert text.startswith("4 columns of patients.csv must have a public range or public categories: ")
    assert "age, blood pressure, city, ill" in text
    for line in ("age = [LOW, HIGH]", '"blood pressure" = [LOW, HIGH]', 'city = ["...", "..."]'):
        assert line in text
    assert "smokes" not in text  # truth values have a range by their type
    for value in ("34", "Bonn", "140"):
        assert value not in text


def test_the_template_is_toml_that_describes_the_table_once_filled_in():
    table = Table(label="ill", client="city", ranges={"age": (0, 120)})
    written = template(table, ["blood pressure", "ill"]).replace("LOW, HIGH", "50, 250").replace('"...", "..."', "0, 1")
    filled = tomllib.loads(written)["app"]["options"]["table"]
    again = Table(**filled)
    assert again.range("blood pressure") == (50, 250)
    assert again.classes() == ("0", "1")


def test_a_public_sample_gives_ranges_and_categories():
    table = Table.from_public(ROWS, label="ill")
    assert table.range("age") == (34.0, 51.0)
    assert table.categories == {"city": ("Bonn", "Ulm"), "ill": ("0", "1")}
    assert table.target == "classification"
    assert Table.from_public({"x": [1.5, 2.5], "y": ROWS["city"]}, label=["x"]).target == "classification"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"label": ""}, "needs a label"),
        ({"label": "a", "client": "a"}, "'a' has two roles"),
        ({"label": "a", "exclude": ("a",)}, "'a' is excluded"),
        ({"label": "a", "ranges": {"b": (2, 1)}}, "range of 'b'"),
        ({"label": "a", "ranges": {"b": (0, float("inf"))}}, "range of 'b'"),
        ({"label": "a", "ranges": (1, 1)}, "range of 'all columns'"),
        ({"label": "a", "categories": {"b": ()}}, "categories of 'b'"),
        ({"label": "a", "categories": {"b": (1, "1")}}, "categories of 'b'"),
        ({"label": "a", "ranges": {"b": (0, 1)}, "categories": {"b": ("x",)}}, "not both"),
        ({"label": ("a", "b"), "categories": {"a": ("x",)}}, "several labels"),
    ],
)
def test_descriptions_without_a_meaning_are_refused(wrong, words):
    with pytest.raises(InputError, match=words):
        Table(**wrong)


def test_columns_that_are_described_and_missing_are_named():
    with pytest.raises(InputError, match="no column 'weight'"):
        Encoder.from_columns(Table(label="ill", ranges={"weight": (0, 1)}), as_columns(ROWS, "t"))


def test_a_column_without_a_name_is_pointed_out_and_excluded_in_a_template(tmp_path):
    (tmp_path / "index.csv").write_text(",age,ill\n0,34,1\n1,51,0\n")  # as DataFrame.to_csv writes it
    with pytest.raises(InputError, match=r"categories: '' \(the column without a name\), age, ill\."):
        Encoder.from_columns(Table(label="ill"), as_columns(tmp_path / "index.csv", ""))
    written = tomllib.loads(write_template(tmp_path / "index.csv", ["", "age", "ill"]))
    assert written["app"]["options"]["table"]["exclude"] == [""]
    known = Table(label="ill", exclude=("",), ranges={"age": (0, 120)}, categories={"ill": (0, 1)})
    assert Encoder.from_columns(known, as_columns(tmp_path / "index.csv", "")).features == ("age",)


def test_a_public_sample_must_have_the_label_and_the_client_and_no_empty_column():
    for wanted in ({"label": "illness"}, {"label": "ill", "client": "hospital"}):
        with pytest.raises(
            InputError, match=r"the public sample has no column '(illness|hospital)': its columns are age"
        ):
            Table.from_public(ROWS, **wanted)
    with pytest.raises(InputError, match="all cells of the column 'age' of the public sample are empty"):
        Table.from_public(ROWS | {"age": [None, ""]}, label="ill")


def test_an_error_on_cells_that_are_no_numbers_says_where_decimal_commas_are_read(tmp_path):
    (tmp_path / "tabs.tsv").write_text("dose\till\n2,5\t1\n")
    known = Table(label="ill", ranges={"dose": (0, 9)}, categories={"ill": (0, 1)})
    with pytest.raises(InputError, match=r"'dose' have a range.*\(decimal commas are read only from CSV files with"):
        Encoder.from_columns(known, as_columns(tmp_path / "tabs.tsv", ""))


def test_a_description_takes_what_numpy_and_pandas_compute_from_a_public_sample():
    ages, cities = np.array([20, 90]), np.array(["Bonn", "Ulm"])
    given = Table(
        label=np.str_("ill"),
        exclude=["id"],
        ranges={"age": (ages.min(), np.float32(ages.max()))},
        categories={"city": cities, "ill": (np.int64(0), np.bool_(True))},
    )
    assert given.label == "ill"
    assert (given.range("age"), given.listed("city"), given.classes()) == ((20, 90), ("Bonn", "Ulm"), ("0", "True"))
    assert msgspec.convert(msgspec.to_builtins(given), Table) == given  # as a run stores and reads it


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ranges": {"age": ("0", "100")}}, "the range of 'age' must be two finite numbers"),
        ({"ranges": 5}, "the range of 'all columns' must be two finite numbers"),
        ({"ranges": None}, "the range of 'all columns' must be two finite numbers"),
        ({"ranges": {"age": 5}}, "the range of 'age' must be two finite numbers"),
        ({"ranges": {"age": None}}, "the range of 'age' must be two finite numbers"),
        ({"ranges": {"age": "01"}}, "the range of 'age' must be two finite numbers"),
        ({"ranges": {3: (0, 1)}}, "by the names of columns, not by 3"),
        ({"gaps": {"age": float("nan")}}, "the gaps of 'age' must be filled with a finite number, not with nan"),
        ({"gaps": -float("inf")}, "the gaps of 'all columns' must be filled with a finite number"),
        ({"categories": {"city": {"Bonn", "Ulm"}}}, "a set, which has no order: pass a list instead"),
        ({"exclude": frozenset({"id", "date"})}, "a set, which has no order: pass a list instead"),
        ({"exclude": "id"}, r"exclude of a table cannot be 'id': Expected `array`.*such as \(\"id\", \"date\"\)"),
        ({"label": 3}, "label of a table cannot be 3"),
        ({"categories": {"city": ("Bonn", None)}}, r"categories of a table cannot be .*Expected `bool \| int \| float"),
        ({"categories": {"city": "Bonn"}}, "categories of a table cannot be"),
    ],
)
def test_a_description_of_the_wrong_type_is_refused_where_it_is_written(wrong, words):
    with pytest.raises(InputError, match=words):
        Table(**{"label": "ill", **wrong})
