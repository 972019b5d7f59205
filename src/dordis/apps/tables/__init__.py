"""Tables with public descriptions (label, client, ranges, categories, empty cells), and their encoding as arrays."""

from dordis.apps.tables.description import Table
from dordis.apps.tables.encoding import Encoder

__all__ = ["Encoder", "Table"]
