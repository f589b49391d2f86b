"""A cache with a maximum number of entries."""


class LruCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.entries = {}

    def get(self, key, default=None):
        if key not in self.entries:
            return default
        self.entries[key] = self.entries.pop(key)
        return self.entries[key]

    def put(self, key, value):
        self.entries.pop(key, None)
        if len(self.entries) >= self.capacity:
            del self.entries[next(iter(self.entries))]
        self.entries[key] = value
