"""Primitives, one a file: stateless functions on bytes over vetted libraries."""
