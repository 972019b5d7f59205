"""Clients and server on machines of their own: log-in, connections, deadlines."""
