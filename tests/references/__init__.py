"""Slow, plain implementations that the fast ones are compared with."""
