"""Means, medians and how far apart."""


def mean(values):
    if not values:
        raise ValueError("there is no mean of nothing")
    return sum(values) / len(values)


def median(values):
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def modes(values):
    """The values that occur most often, in order."""
    counts = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    most = max(counts.values(), default=0)
    return sorted(value for value, count in counts.items() if count == most)


def variance(values, sample=True):
    """The mean squared distance from the mean; of a sample, divided by one less."""
    middle = mean(values)
    total = sum((value - middle) ** 2 for value in values)
    return total / (len(values) - 1 if sample else len(values))


def quantile(values, share):
    """The value below which a share of the values lies, between neighbours in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    if low + 1 >= len(ordered):
        return float(ordered[-1])
    return ordered[low] + (place - low) * (ordered[low + 1] - ordered[low])
