"""Identities of a federation: who may take part, and with which keys."""
