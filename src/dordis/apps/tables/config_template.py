"""A configuration to fill in for a table, from the names of its columns alone."""

import re
from collections.abc import Sequence
from pathlib import Path

from dordis.apps.tables.description import toml_key, toml_list, toml_value

_IDS = re.compile(r"(^|[_ .-])(id|uuid|name|date|time|timestamp|datetime|birthday|dob|index|unnamed)([_ .:-]|$)", re.I)
_CLIENTS = re.compile(
    r"(^|[_ .-])(client|patient|person|user|hospital|clinic|site|customer|subject|device)([_ .-]|$)", re.I
)


def write_template(data: Path, columns: Sequence[str]) -> str:
    """Return a commented configuration for a table with these columns; no value of the table is read."""
    plain = [name for name in columns if not _IDS.search(name) and not _CLIENTS.search(name)]
    label = (plain or columns)[-1]
    client = next((name for name in columns if _CLIENTS.search(name) and name != label), None)
    excluded = [name for name in columns if _IDS.search(name) and name not in (label, client)]
    features = [name for name in columns if name not in {label, client, *excluded}]
    ranges = "\n".join(f"# {toml_key(name)} = [LOW, HIGH]" for name in features)
    named = f"client = {toml_value(client)}" if client else '# client = "person"'
    return f"""\
# Private learning from {data.name}. Fill in LABEL, ranges and categories from public knowledge, never from the rows: a
# smallest or largest value that is read from private rows is published with the model. Then:
#   dordis run THIS_FILE --dry-run     checks everything and spends nothing
#   dordis rehearse THIS_FILE          the same job on synthetic rows
#   dordis run THIS_FILE
name = {toml_value(re.sub(r"[^A-Za-z0-9_-]+", "-", data.stem).strip("-") or "table")}

[app.options]
data = {toml_value(data.name)}
# test = "public.csv"              # public rows with the same columns; metrics on them have no noise

[app.options.table]
label = {toml_value(label)}  # the column to predict: is it this one?
{named}  # the column that names the client of a row; without it each row is one client
exclude = {toml_list(excluded)}  # ids, dates and other columns that are no features
gaps = "refuse"                    # an empty cell: "refuse", "skip" the row, "indicator", or a value; or by column

[app.options.table.ranges]         # numbers: clipped to the range and scaled; remove the # of each numeric column
{ranges}

[app.options.table.categories]     # texts: one-hot; values that are not listed count as "other"
# {toml_key(label)} = ["no", "yes"]  # classes of the label; give it a range above instead to predict a number

[federation]
clients = 100                      # number of persons, hospitals .. or rows; a wrong number is refused
per_round = 100
rounds = 20

[privacy]
epsilon = 6.0

[simulation]
fidelity = "ideal"
"""
