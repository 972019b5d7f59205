"""Keys, certificates, the registry and the authority that signs it."""
