"""Applications: federated learning, private means and histograms, language models, audits.

A configuration names the `Server` and the `Client` of an application; `Settings` describes the options of both.
"""
