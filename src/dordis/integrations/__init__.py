"""Rounds of dordis in other frameworks: private rounds for Flower apps, and simulated clients in a Ray cluster."""
