"""Differential privacy: noise, encoding of updates, mechanisms, accounting and planning."""
