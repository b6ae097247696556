"""A cache that forgets what was not used for longest."""


class LRUCache:
    def __init__(self, capacity=2):
        if capacity < 1:
            raise ValueError("a cache holds at least one entry")
        self.capacity = capacity
        self.entries = {}
        self.hits = 0
        self.misses = 0

    def get(self, key, default=None):
        if key not in self.entries:
            self.misses += 1
            return default
        self.hits += 1
        value = self.entries.pop(key)
        self.entries[key] = value
        return value

    def put(self, key, value):
        """Keep a value; returns the key that was forgotten for it, or None."""
        self.entries.pop(key, None)
        forgotten = None
        if len(self.entries) >= self.capacity:
            forgotten = next(iter(self.entries))
            del self.entries[forgotten]
        self.entries[key] = value
        return forgotten

    def keys(self):
        """The keys, the one used last at the end."""
        return list(self.entries)

    def rate(self):
        """The share of reads that found something."""
        reads = self.hits + self.misses
        if reads == 0:
            return 0.0
        return self.hits / reads
