"""Cryptographic primitives, one in each file: stateless functions on bytes, over vetted libraries."""
