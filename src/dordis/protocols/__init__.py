"""Summing protocols: parameters of a round, SecAgg, assisted and plaintext sums, distributed noise, delivery."""
