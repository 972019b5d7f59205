"""Bits of computational security: docs/proofs/bounds.md and the privacy statement show the computed numbers."""

import math
from pathlib import Path

import pytest

from dordis.crypto.suite import RoundSize, concrete_bounds, security_bits

DOCUMENT = Path(__file__).parents[2] / "docs" / "proofs" / "bounds.md"
COLUMNS = (RoundSize(100), RoundSize(1000, degree=64))


def table() -> dict[str, tuple[str, ...]]:
    """Read the table under "Concrete bounds": figures by what would have to happen."""
    section = DOCUMENT.read_text(encoding="utf-8").split("\n## Concrete bounds\n")[1].split("\n## ")[0]
    first = next(part for part in section.split("\n\n") if part.startswith("|"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in first.splitlines()]
    assert rows[0] == ["what would have to happen", "bound", "n = 100, m = 1", "n = 1000, k = 64"]
    return {what: tuple(figures) for what, _, *figures in rows[2:]}


def test_the_table_in_the_documentation_is_what_the_function_gives():
    computed = [concrete_bounds(size) for size in COLUMNS]
    assert table() == {what: tuple(f"2^{column[what]:.1f}" for column in computed) for what in computed[0]}


def test_bits_shrink_with_rounds_clients_chunks_and_components():
    bits = security_bits(RoundSize(100), 1)
    assert security_bits(RoundSize(100), 1024) == pytest.approx(bits - 10)
    for larger in (RoundSize(200), RoundSize(100, chunks=8), RoundSize(100, components=21)):
        assert security_bits(larger, 1) < bits
    assert security_bits(RoundSize(1000, degree=64), 1) > security_bits(RoundSize(1000), 1)


def test_all_lines_of_the_table_add_up():
    bounds = concrete_bounds(RoundSize(100))
    assert 2.0 ** -security_bits(RoundSize(100), 3) == pytest.approx(3 * math.fsum(2.0**b for b in bounds.values()))


def test_one_client_alone_has_no_neighbours_and_still_a_bound():
    assert security_bits(RoundSize(1, coordinates=1), 1) > 50
