"""One or two intervals."""


def length(interval):
    start, end = interval
    return max(0, end - start)


def overlaps(one, other):
    """Whether two intervals share a point; those that only touch do not."""
    return one[0] < other[1] and other[0] < one[1]


def intersection(one, other):
    """The shared part, or None."""
    start, end = max(one[0], other[0]), min(one[1], other[1])
    if start >= end:
        return None
    return (start, end)


def contains(interval, point):
    return interval[0] <= point < interval[1]
