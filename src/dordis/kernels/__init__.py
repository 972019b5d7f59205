"""Loops on blocks of bytes and integers, compiled by numba; no policy, no randomness, no keys."""
