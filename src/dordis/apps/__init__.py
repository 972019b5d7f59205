"""What is computed privately: a mean, a histogram, a model.

Each module has a `Server` and a `Client` for a configuration to name, and `Settings`, which are their options.
"""
