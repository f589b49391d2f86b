"""Turns out of the ledger, token for token, for people who train on what their agents said."""
