"""The ledger: store generated turns token for token and recognize them in later requests."""
