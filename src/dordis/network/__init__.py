"""Deployed runs: server and clients on machines of their own, over TLS."""
