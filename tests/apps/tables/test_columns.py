"""Columns from every source by the same rules."""

import numpy as np
import pytest

from dordis.apps.tables.columns import as_columns, read_columns, read_header
from dordis.errors import InputError


def test_files_of_any_delimiter_and_encoding_are_read(tmp_path):
    for delimiter, encoding in ((",", "utf-8"), (";", "cp1252"), ("\t", "utf-16"), ("|", "utf-8-sig"), (";", "utf-8")):
        path = tmp_path / "table.csv"
        path.write_text(f"größe{delimiter}ort\n180{delimiter}Köln\n", encoding=encoding)
        columns = as_columns(path, "")
        assert columns.names == ("größe", "ort")
        assert (columns.numbers("größe").tolist(), columns.texts("ort").tolist()) == ([180.0], ["Köln"])


HEADER_BYTES = 1 << 16  # read at first, to find the names of the columns


@pytest.mark.parametrize("letter", ["é", "€", "𝄞"])
@pytest.mark.parametrize("size", [HEADER_BYTES, HEADER_BYTES + 1000])
def test_a_header_is_read_although_a_letter_lies_across_the_end_of_the_first_64_kib(tmp_path, letter, size):
    path = tmp_path / "names.csv"
    for cut in range(len(letter.encode()) + 1):
        start = "größe,name\n1,".encode()
        before = start + b"x" * (HEADER_BYTES - cut - len(start))
        path.write_bytes((before + letter.encode()).ljust(size, b"x"))
        assert read_header(path) == ("größe", "name")


@pytest.mark.parametrize("rows", [0, 1000])
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
def test_a_header_may_be_longer_than_64_kib(tmp_path, encoding, rows):
    path, names = tmp_path / "wide.csv", tuple(f"größe{i}" for i in range(10_000))
    path.write_bytes("\n".join([",".join(names)] + ["1"] * rows).encode(encoding))
    assert read_header(path) == names


def test_the_last_letter_of_a_file_of_64_kib_is_read(tmp_path):
    path = tmp_path / "names.csv"
    path.write_bytes(b"size,name\n".ljust(HEADER_BYTES - 6, b"\n") + "1,café".encode("cp1252"))
    assert path.stat().st_size == HEADER_BYTES
    assert as_columns(path, "").texts("name").tolist() == ["café"]


def test_a_file_of_one_endless_cell_is_refused(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("x" * 200_000)
    with pytest.raises(InputError, match="its first line has a cell of more than 131072 letters"):
        read_header(path)


def test_a_file_with_semicolons_may_have_decimal_commas(tmp_path):
    (tmp_path / "table.csv").write_text("a;b\n3,25;x\n-1;y\n")
    assert as_columns(tmp_path / "table.csv", "").numbers("a").tolist() == [3.25, -1.0]
    assert read_columns(tmp_path / "table.csv", ["a"]).values.tolist() == [[3.25], [-1.0]]
    assert read_columns(tmp_path / "table.csv", ["a"], skip_invalid=True).skipped == 0
    (tmp_path / "bare.csv").write_text("3,25;1;0\n-1;2,5;0\n")
    assert read_columns(tmp_path / "bare.csv").values.tolist() == [[3.25, 1, 0], [-1, 2.5, 0]]
    (tmp_path / "commas.csv").write_text('a,b\n"3,25",1\n')
    with pytest.raises(InputError, match=r"line 2, column 'a'.* is not a finite number"):
        read_columns(tmp_path / "commas.csv")


@pytest.mark.parametrize("line", ["1,5;2", "1,5;2,7;3,1", "1,5\t2,5\t3", "1,5|2|3", '"1,5","2,5"', '"1,5";"2"', "1,5"])
def test_a_private_row_with_decimal_commas_is_no_header(tmp_path, line):
    path = tmp_path / "bare.csv"
    path.write_text(f"{line}\n{line}\n")
    with pytest.raises(InputError, match="holds numbers: put a line") as error:
        read_header(path)
    assert "1,5" not in str(error.value)
    columns = as_columns(path, "")
    assert columns.names == tuple(str(i + 1) for i in range(len(columns.names)))
    assert len(columns) == 2
    if ";" in line:
        assert columns.numbers("1").tolist() == [1.5, 1.5]


def test_a_semicolon_is_taken_for_the_delimiter_rather_than_as_many_commas(tmp_path):
    (tmp_path / "table.csv").write_text("size, cm;place\n1,5;Ulm\n")
    columns = as_columns(tmp_path / "table.csv", "")
    assert columns.names == ("size, cm", "place")
    assert columns.numbers("size, cm").tolist() == [1.5]


@pytest.mark.parametrize("table", [{"a": [[1, 2], [3]]}, {"a": [1, 2], "b": [3]}, {"a": {1, 2}}, {}])
def test_columns_that_are_no_rows_of_cells_are_one_clear_error(table):
    with pytest.raises(InputError, match="t: all columns must be lists or arrays of the same length"):
        as_columns(table, "t")


def test_empty_cells_are_gaps_however_they_are_written():
    columns = as_columns({"a": ["1", "", "NA", "n/a", " ", None, float("nan"), "?", "2"]}, "")
    assert np.isnan(columns.numbers("a")).tolist() == [False, *[True] * 7, False]


def test_truth_values_are_numbers_however_their_letters_are_written():
    assert as_columns({"a": ["TRUE", "false", "True", " true"]}, "").numbers("a").tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("source", ["frame", "csv"])
def test_columns_of_one_name_are_refused(tmp_path, source):
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    (tmp_path / "two.csv").write_text("a,a\n1,2\n")
    table = pandas.DataFrame([[1, 2]], columns=["a", "a"]) if source == "frame" else tmp_path / "two.csv"
    with pytest.raises(InputError, match="several columns called 'a'"):
        as_columns(table, "the table")


@pytest.mark.parametrize("source", [3, [1, 2], None, np.zeros((2, 2))])
def test_what_is_no_table_is_refused(source):
    with pytest.raises(InputError, match="must be a DataFrame"):
        as_columns(source, "data")


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(InputError, match="of the same length"):
        as_columns({"a": [1], "b": [1, 2]}, "data")


def test_without_pandas_parquet_says_what_it_needs(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="needs pandas"):
        as_columns(tmp_path / "a.parquet", "")


def test_a_parquet_file_that_is_none_is_refused(tmp_path):
    pytest.importorskip("pyarrow", reason="pandas needs pyarrow to read Parquet")
    (tmp_path / "broken.parquet").write_text("no parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        as_columns(tmp_path / "broken.parquet", "")
