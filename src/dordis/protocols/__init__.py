"""Protocols that sum vectors: what a round is agreed on, the plain one, and SecAgg."""
