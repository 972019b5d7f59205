"""Applications: federated learning, private means and histograms, language models, audits.

Each module has a `Server` and a `Client` for a configuration to name, and `Settings`, which are their options.
"""
