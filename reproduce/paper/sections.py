"""All sections of the page, in the paper's order."""

from dordis.errors import InputError
from reproduce.paper import (
    Section,
    artifact,
    figures_1abc_trace,
    figures_1d_8_epsilon,
    figures_2_10_round_times,
    figures_3_4_6_table_1,
    table_2_figure_9_accuracy,
    table_3_traffic,
)

_MODULES = (
    figures_1abc_trace,
    figures_1d_8_epsilon,
    figures_2_10_round_times,
    figures_3_4_6_table_1,
    table_2_figure_9_accuracy,
    table_3_traffic,
    artifact,
)

_ALL = {section.number: section for module in _MODULES for section in module.SECTIONS}
ORDER = (
    "figure 1a",
    "figure 1b",
    "figure 1c",
    "figure 1d",
    "figure 2",
    "figure 3",
    "figure 4",
    "figure 6",
    "figure 8",
    "figure 9",
    "figure 10",
    "table 1",
    "table 2",
    "table 3",
    "experiment artifact",
)
SECTIONS = {number: _ALL[number] for number in ORDER}


def find_sections(kind: str, number: str) -> list[Section]:
    """Return the section with a number, or all parts of a figure: `figure 1` is 1a to 1d."""
    name = f"{kind} {number.lower()}"
    found = [section for key, section in SECTIONS.items() if key == name or (key[:-1] == name and key[-1].isalpha())]
    if not found:
        known = ", ".join(key.removeprefix(f"{kind} ") for key in SECTIONS if key.startswith(f"{kind} "))
        raise InputError(f"there is no {kind} {number}: there are {known}")
    return found
