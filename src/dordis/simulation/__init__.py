"""Runs with simulated clients: their dropout, rounds in virtual time, and ideal rounds without messages."""
