"""Watch mode: a passthrough in front of a server that was not changed, and what it finds out."""
