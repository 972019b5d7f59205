"""Availability and dropout of simulated clients: models by rates, and traces of real devices."""
