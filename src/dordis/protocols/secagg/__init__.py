"""Secure aggregation (SecAgg) with noise that stays exact whoever drops out."""

from dordis.protocols.secagg.chunk import ChunkOutput
from dordis.protocols.secagg.client import SecAggClient
from dordis.protocols.secagg.server import SecAggServer

__all__ = ["ChunkOutput", "SecAggClient", "SecAggServer"]
