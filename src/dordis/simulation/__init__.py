"""Rounds in one process: clients that vanish on cue, every message through the codec."""
