"""Values in a row."""


def running_sums(values, start=0):
    sums, total = [], start
    for value in values:
        total += value
        sums.append(total)
    return sums


def moving_means(values, width=3):
    """The mean of every `width` neighbours; none where there are fewer."""
    out = []
    for first in range(len(values) - width + 1):
        out.append(sum(values[first : first + width]) / width)
    return out


def best_stretch(values):
    """The largest sum of neighbours, and where they begin and end (the end not included)."""
    best, where = values[0], (0, 1)
    total, first = 0, 0
    for at, value in enumerate(values):
        if total <= 0:
            total, first = 0, at
        total += value
        if total > best:
            best, where = total, (first, at + 1)
    return best, where


def ranks(scores, ascending=False):
    """The place of every score, the highest first; equal scores share the better place."""
    ordered = sorted(scores, reverse=not ascending)
    return [ordered.index(score) + 1 for score in scores]


def histogram(values, width=10):
    """How many values lie in each stretch of `width`, by where it begins; empty ones are left out."""
    counts = {}
    for value in values:
        begin = value // width * width
        counts[begin] = counts.get(begin, 0) + 1
    return sorted(counts.items())


def peaks(values):
    """The places of values that are larger than both neighbours."""
    return [i for i in range(1, len(values) - 1) if values[i - 1] < values[i] > values[i + 1]]
