"""The ledger: stores generated turns token for token, and recognizes them in later requests."""
