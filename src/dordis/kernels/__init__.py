"""Loops on arrays of bytes and numbers, compiled by numba; randomness and keys belong to the callers."""
