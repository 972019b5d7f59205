"""Federated learning with distributed differential privacy that survives client dropout."""
