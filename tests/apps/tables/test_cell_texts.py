"""Texts of cells: which of them count as empty, and where."""

import pytest

from dordis.apps.tables import Encoder, Table
from dordis.apps.tables.columns import as_columns


@pytest.mark.parametrize("word", ["none", "NA", "?", "null"])
def test_a_word_for_an_empty_cell_is_a_value_where_it_is_a_category(word):
    table = Table(label="ill", categories={"smoking": (word, "daily"), "ill": (word, "flu")}, gaps="skip")
    rows = {"smoking": [word, "daily", "", word], "ill": [word, "flu", word, None]}
    made = Encoder.from_columns(table, as_columns(rows, "rows"))
    encoded = made.encode(rows, "rows")
    assert (encoded.x.tolist(), encoded.y.tolist(), encoded.skipped) == ([[1, 0, 0], [0, 1, 0]], [0, 1], 2)
    assert made.describe(as_columns(rows, "rows"), encoded)["column smoking"].startswith(
        f"categories {word} 2, daily 1"
    )
    assert made.encode_features(rows, "rows")[:, 0].tolist() == [1, 0, 0, 1]


def test_a_word_for_an_empty_cell_is_empty_where_it_is_no_category():
    table = Table(label="ill", ranges={"age": (0, 100)}, categories={"ill": ("none", "flu")}, gaps={"age": "indicator"})
    encoded = Encoder.from_columns(table, as_columns({"age": [0], "ill": ["flu"]}, "")).encode(
        {"age": ["none", "100"], "ill": ["none", "flu"]}, "rows"
    )
    assert (encoded.x.tolist(), encoded.y.tolist()) == ([[0, 1], [1, 0]], [0, 1])
