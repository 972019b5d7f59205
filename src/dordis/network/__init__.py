"""Deployed runs: the server and every client are on machines of their own, and communicate over TLS."""
