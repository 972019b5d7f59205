"""Conversion of the cells of a table to texts, and the texts that count as an empty cell."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Texts = npt.NDArray[Any]
"""Cells of a column as texts; None where a cell is empty."""

GAPS = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "<na>", "nat"})
"""Texts, in lower case, that count as an empty cell, unless they are listed as categories of the column."""


def as_texts(values: Sequence[Any]) -> Texts:
    """Return cells as texts (`normalise`), with None for empty cells."""
    return split_gaps(values)[0]


def split_gaps(values: Sequence[Any]) -> tuple[Texts, Texts | None]:
    """Return the cells as texts (`normalise`), with None for empty cells; and the texts of cells that count as empty.

    A text such as "na" (`GAPS`) counts as an empty cell.  The second array has these texts, and None for all other
    cells.  If there are no such texts, None is returned instead of the second array.
    """
    texts, words = np.empty(len(values), object), np.empty(len(values), object)
    for i, value in enumerate(values):
        text = normalise(value)
        if text.lower() in GAPS:
            words[i] = text or None
        else:
            texts[i] = text
    return texts, words if any(words) else None


def normalise(value: Any) -> str:
    """Return a value as a text, such that two cells name the same category or client if their texts are equal.

    The text has no surrounding white space, and whole numbers have no decimal point.

    >>> normalise(3.0), normalise(" yes "), normalise(None), normalise("3.0")
    ('3', 'yes', '', '3')
    """
    if value is None:
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    text = str(value).strip()
    whole = text.rstrip("0").removesuffix(".") if "." in text else text  # 3.0 in a file is the category 3
    return whole if whole.lstrip("-").isdecimal() else text
