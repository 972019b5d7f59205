"""Look into the privacy ledger of a run."""
