"""What the stores of turns and of responses share: a SQLite file, its thread, a Redis server."""
