"""Reproduce figures of the paper."""
