"""One round: the client that handles every message of it, and the one engine that runs it."""
