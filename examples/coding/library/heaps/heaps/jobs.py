"""Jobs by priority: the higher first, among equals the one that came first."""

from heaps.heap import pop, push


class Jobs:
    def __init__(self, most=10):
        self.waiting = []
        self.most = most
        self.count = 0

    def add(self, name, priority=0):
        """Queue a job; False where the queue is full."""
        if len(self.waiting) >= self.most:
            return False
        push(self.waiting, (-priority, self.count, name))
        self.count += 1
        return True

    def next(self):
        """The name of the next job, or None."""
        if not self.waiting:
            return None
        return pop(self.waiting)[2]

    def drain(self):
        names = []
        while self.waiting:
            names.append(self.next())
        return names


def finish_times(durations, workers=1):
    """When each job ends if every free worker takes the next one."""
    free, ends = [], []
    for _ in range(workers):
        push(free, 0)
    for duration in durations:
        end = pop(free) + duration
        ends.append(end)
        push(free, end)
    return ends
