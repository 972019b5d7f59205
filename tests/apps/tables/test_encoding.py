"""From rows to numbers and back: ranges, categories, gaps, labels."""

import numpy as np
import pytest

from dordis.apps.tables import Encoder, Table
from dordis.apps.tables.columns import as_columns
from dordis.errors import InputError

ROWS = {
    "age": [20.0, 70.0, 400.0, None],
    "city": ["Bonn", "Ulm", "Rome", None],
    "ill": ["no", "yes", "yes", "no"],
}
KNOWN = {"label": "ill", "ranges": {"age": (20, 120)}, "categories": {"city": ("Bonn", "Ulm"), "ill": ("no", "yes")}}


def encoder(**changes):
    return Encoder.from_columns(Table(**(KNOWN | changes)), as_columns(ROWS, "rows"))


def test_numbers_are_clipped_and_scaled_and_categories_have_one_column_for_the_rest():
    rows = encoder(gaps={"age": "indicator"}).encode(ROWS, "rows")
    np.testing.assert_allclose(rows.x[:, 0], [-1, 0, 1, 0])
    np.testing.assert_array_equal(rows.x[:, 1], [0, 0, 0, 1])
    np.testing.assert_array_equal(rows.x[:, 2:], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    np.testing.assert_array_equal(rows.y, [0, 1, 1, 0])


def test_gaps_are_refused_in_one_message_filled_or_skipped():
    with pytest.raises(InputError, match=r'empty cells in age.*\n.*gaps.*\nage = "indicator"'):
        encoder().encode(ROWS, "rows")
    filled = encoder(gaps={"age": 70, "city": "Ulm"}).encode(ROWS, "rows")
    np.testing.assert_allclose(filled.x[3], [0, 0, 1, 0])
    skipped = encoder(gaps={"age": "skip"}).encode(ROWS, "rows")
    assert (len(skipped.x), skipped.skipped) == (3, 1)
    with pytest.raises(InputError, match="filled with a number"):
        encoder(gaps={"age": "old"}).encode(ROWS, "rows")


def test_the_summary_for_the_owner_says_what_happens_to_empty_cells():
    made, columns = encoder(gaps={"age": "indicator"}), as_columns(ROWS, "rows")
    shown = made.describe(columns, made.encode(ROWS, "rows"))
    assert shown["column age"].endswith("; 1 empty cells: indicator")
    assert shown["column city"].endswith("; 1 empty cells: other")
    assert shown["columns not used"] == "none"


def test_the_column_of_record_ids_is_used():
    table, rows = Table(**KNOWN, gaps="skip"), ROWS | {"patient": ["a", "a", "b", "c"]}
    made = Encoder.from_columns(table, as_columns(rows, "rows"), record="patient")
    shown = made.describe(as_columns(rows, "rows"), made.encode(rows, "rows"))
    assert shown["columns not used"] == "none"


def test_the_width_does_not_depend_on_the_rows():
    for gaps in ("indicator", "skip"):
        made = encoder(gaps=gaps)
        assert made.encode({name: cells[:2] for name, cells in ROWS.items()}, "rows").x.shape[1] == made.width


def test_labels_are_decoded_to_what_they_were():
    assert encoder(gaps="skip").decode(np.array([[2.0, 1.0], [0.0, 3.0]])).tolist() == ["no", "yes"]
    numbers = Encoder.from_columns(
        Table(label="y", ranges={"x": (0, 1), "y": (10, 30)}), as_columns({"x": [0], "y": [25]}, "")
    )
    assert numbers.encode({"x": [0], "y": [25]}, "").y.tolist() == [0.5]
    assert numbers.decode(np.array([[0.5], [-1.0]])).tolist() == [25.0, 10.0]
    both = Table(label=("y", "z"), ranges={"x": (0, 1), "y": (0, 10), "z": (-1, 1)})
    several = Encoder.from_columns(both, as_columns({"x": [0], "y": [5], "z": [1]}, ""))
    np.testing.assert_allclose(several.encode({"x": [0], "y": [5], "z": [1]}, "").y, [[0, 1]])
    np.testing.assert_allclose(several.decode(np.array([[0.0, 1.0]])), [[5, 1]])


def test_a_label_that_is_no_class_is_refused_without_its_value():
    rows = ROWS | {"ill": ["no", "perhaps", "yes", "no"]}
    with pytest.raises(InputError, match="1 rows have a label 'ill' that is not among its classes") as error:
        encoder(gaps="skip").encode(rows, "rows")
    assert "perhaps" not in str(error.value)


def test_rows_without_a_client_are_refused_from_every_source(tmp_path):
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    rows = {"age": [1, 2], "who": ["a", None], "ill": [0, 1]}
    table = Table(label="ill", client="who", ranges={"age": (0, 9)}, categories={"ill": (0, 1)})
    frame = pandas.DataFrame(rows)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_parquet(tmp_path / "rows.parquet")
    for source in (rows, frame, frame.convert_dtypes(), tmp_path / "rows.csv", tmp_path / "rows.parquet"):
        columns = as_columns(source, "rows")
        with pytest.raises(InputError, match="1 rows without a client"):
            Encoder.from_columns(table, columns).encode(columns, "rows")


def test_categories_match_numbers_and_truth_values_however_they_are_written(tmp_path):
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    table = Table(label="y", ranges={"x": (0, 1)}, categories={"y": (0, 1)})
    for values in ([0, 1], [0.0, 1.0], ["0", "1.0"], pandas.array([0, 1], dtype="Int64"), pandas.Categorical([0, 1])):
        frame = pandas.DataFrame({"x": [True, False], "y": values})
        rows = Encoder.from_columns(table, as_columns(frame, "")).encode(frame, "")
        assert (rows.y.tolist(), rows.x.ravel().tolist()) == ([0, 1], [1.0, -1.0])


def test_the_column_of_record_ids_is_no_feature_and_has_no_gaps():
    rows = ROWS | {"id": ["a", "b", "a", "c"]}
    table = Table(**(KNOWN | {"gaps": {"age": "indicator"}}))
    made = Encoder.from_columns(table, as_columns(rows, "rows"), "id")
    assert made.features == ("age", "city")
    encoded = made.encode(rows, "rows", needs_record=True)
    assert encoded.records.tolist() == ["a", "b", "a", "c"]
    assert made.encode(ROWS, "rows").records is None
    with pytest.raises(InputError, match="2 rows without an id in the column 'id'"):
        made.encode(rows | {"id": ["a", "", "b", None]}, "rows", needs_record=True)
    with pytest.raises(InputError, match="no column 'id'"):
        made.encode(ROWS, "rows", needs_record=True)
    with pytest.raises(InputError, match="cannot be a label, a feature or the client"):
        Encoder.from_columns(table, as_columns(rows, "rows"), "ill")


def test_an_id_that_a_skipped_row_has_is_not_a_record():
    rows = ROWS | {"id": ["a", "b", "a", "c"]}
    made = Encoder.from_columns(Table(**(KNOWN | {"gaps": "skip"})), as_columns(rows, "rows"), "id")
    assert made.encode(rows, "rows", needs_record=True).records.tolist() == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("name", "cells"), [("city", ["BONN", "ulm", None, ""]), ("age", [200, 190, None, 300]), ("age", [2, 7.5, 19, 3])]
)
def test_a_feature_whose_values_all_miss_the_description_is_refused(name, cells):
    rows = ROWS | {name: cells}
    with pytest.raises(InputError, match=f"^rows: no value of '{name}' is in the public range or among the public"):
        encoder(gaps="indicator").check_informative(as_columns(rows, "rows"))
    encoder(gaps="indicator").check_informative(as_columns(ROWS, "rows"))
    encoder(gaps="indicator").check_informative(as_columns(ROWS | {name: [None] * 4}, "rows"))


def test_an_empty_label_is_skipped_or_refused_and_the_error_offers_nothing_else():
    with pytest.raises(InputError, match=r'empty cells in ill.*\n.*gaps.*\nill = "skip"  # leaves out rows') as error:
        encoder(gaps={"age": "skip"}).encode(ROWS | {"ill": ["no", None, "yes", "no"]}, "rows")
    assert "indicator" not in str(error.value)


def test_a_column_of_record_ids_that_is_missing_is_named():
    with pytest.raises(InputError, match="rows has no column 'patient', which names the records"):
        Encoder.from_columns(Table(**KNOWN), as_columns(ROWS, "rows"), record="patient")


COSTS = {"age": [20.0, 70.0, 120.0], "cost": [0.0, 5.0, 30.0]}


def test_labels_are_clipped_for_training_and_not_for_tests():
    made = Encoder.from_columns(
        Table(label="cost", ranges={"age": (20, 120), "cost": (0, 10)}), as_columns(COSTS, "rows")
    )
    np.testing.assert_allclose(made.encode(COSTS, "rows").y, [-1, 0, 1])
    np.testing.assert_allclose(made.encode(COSTS, "rows", tests=True).y, [-1, 0, 5])
    with pytest.raises(InputError, match="no value of 'cost' is in the public range"):
        made.check_informative(as_columns(COSTS | {"cost": [11.0, 12.0, 13.0]}, "rows"))
    assert made.decode(np.empty((0, 1))).shape == (0,)
