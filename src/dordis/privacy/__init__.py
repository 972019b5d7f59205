"""Noise, encoding and accounting: the noise that clients add, and the epsilon that follows from it."""
