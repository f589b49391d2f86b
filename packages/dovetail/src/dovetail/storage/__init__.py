"""What stores and caches share: a bounded LRU, a SQLite file and its thread, a Redis client."""
