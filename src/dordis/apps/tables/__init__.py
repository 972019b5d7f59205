"""Tables with public descriptions: label, client, ranges, categories and gaps; one encoding for every source."""

from dordis.apps.tables.description import Table
from dordis.apps.tables.encoding import Encoder

__all__ = ["Encoder", "Table"]
