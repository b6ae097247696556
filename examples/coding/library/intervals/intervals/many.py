"""Lists of intervals."""

from intervals.core import length


def merge(intervals):
    """The same points as few intervals, in order; intervals that touch become one."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def gaps(intervals, within):
    """What of `within` no interval covers."""
    found, at = [], within[0]
    for start, end in merge(intervals):
        if start > at:
            found.append((at, min(start, within[1])))
        at = max(at, end)
        if at >= within[1]:
            break
    if at < within[1]:
        found.append((at, within[1]))
    return found


def covered(intervals):
    """How much all intervals cover together."""
    return sum(length(one) for one in merge(intervals))


def first_fit(intervals, size, within):
    """Where the first gap of at least `size` begins, or None."""
    for start, end in gaps(intervals, within):
        if end - start >= size:
            return start
    return None


def busiest(intervals):
    """The largest number of intervals that share a point, and the first such point."""
    events = sorted([(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals])
    most, where, open_now = 0, None, 0
    for at, change in events:
        open_now += change
        if open_now > most:
            most, where = open_now, at
    return most, where
