"""Decoders of call arguments: each notation becomes append-only JSON text as it streams."""
