"""A ledger in a directory of its own, which goes with it."""

import weakref
from pathlib import Path
from tempfile import TemporaryDirectory

from dordis.ledger.client_spending import Budget
from dordis.ledger.ledger import Ledger


def new_ledger(run: bytes, budget: Budget) -> Ledger:
    """Begin a ledger somewhere."""
    folder = TemporaryDirectory()
    ledger = Ledger.create(Path(folder.name) / "ledger.jsonl", run, budget)
    weakref.finalize(ledger, folder.cleanup)
    return ledger
