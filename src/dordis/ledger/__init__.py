"""The privacy ledger: entries, charges, accounts, receipts, evidence, and the epsilon that may be stated."""
