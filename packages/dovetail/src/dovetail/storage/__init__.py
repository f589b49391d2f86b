"""Building blocks of stores and caches: LRU cache, SQLite thread, Redis client, write queue."""
