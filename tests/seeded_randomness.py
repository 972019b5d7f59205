"""Randomness from a seed in place of the operating system's: what a test draws is the same in every run."""

import random
import secrets

SOURCE = random.Random()
"""What `secrets.token_bytes` draws from once it is installed: all that dordis draws, it draws with that."""


def install(seed: str) -> None:
    """Draw from a seed from now on."""
    SOURCE.seed(seed)
    secrets._sysrand = SOURCE
