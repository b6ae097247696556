"""How many of each article are there."""


class Stock:
    def __init__(self, counts=None, low=5):
        self.counts = dict(counts or {})
        self.low = low

    def add(self, article, count=1):
        if count <= 0:
            raise ValueError("add at least one")
        self.counts[article] = self.counts.get(article, 0) + count
        return self.counts[article]

    def remove(self, article, count=1):
        """Take articles out; ValueError where there are too few. An article that is used up is forgotten."""
        there = self.counts.get(article, 0)
        if count > there:
            raise ValueError("there are too few")
        if count == there:
            del self.counts[article]
            return 0
        self.counts[article] = there - count
        return there - count

    def running_low(self):
        """Articles of which fewer than `low` are left, in order."""
        return sorted(article for article, count in self.counts.items() if count < self.low)

    def total(self):
        return sum(self.counts.values())
