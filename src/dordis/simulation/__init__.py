"""Runs with simulated clients: full and ideal rounds with simulated dropout, and rounds in virtual time."""
