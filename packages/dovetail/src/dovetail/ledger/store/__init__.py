"""Where entries are kept: SQLite in the data folder, memory, or Redis for several frontends."""
