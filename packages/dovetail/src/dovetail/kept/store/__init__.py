"""Where responses are kept: memory, SQLite, Redis."""
