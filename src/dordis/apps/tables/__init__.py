"""Tables with public descriptions (label, client, ranges, categories, gaps), and their encoding as arrays."""

from dordis.apps.tables.description import Table
from dordis.apps.tables.encoding import Encoder

__all__ = ["Encoder", "Table"]
