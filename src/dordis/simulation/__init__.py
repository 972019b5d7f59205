"""Runs with all clients in one process: simulated dropout, virtual time, and ideal rounds without messages."""
