"""Noise, encoding and accounting: everything that makes the guarantee true."""
