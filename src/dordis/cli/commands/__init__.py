"""Federated learning with distributed differential privacy that survives client dropout.

Begin with `dordis run`: it trains a model of handwritten digits privately over 100 simulated clients, and writes a
report. `dordis COMMAND --help` explains a command.
"""
