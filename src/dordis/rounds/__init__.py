"""One round: the client, which handles every message of a round, and the engine of the server, which runs it."""
