"""The books: from facts on disk to a ledger that closes, its figures and its reports."""
