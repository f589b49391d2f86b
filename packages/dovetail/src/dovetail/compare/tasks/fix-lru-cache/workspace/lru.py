"""A cache with a maximum number of entries."""


class LruCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.entries = {}

    def get(self, key, default=None):
        return self.entries.get(key, default)

    def put(self, key, value):
        if len(self.entries) >= self.capacity:
            del self.entries[next(iter(self.entries))]
        self.entries[key] = value
