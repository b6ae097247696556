"""Derivatives, integrals, roots, and how a polynomial is written."""

from polys.algebra import trimmed, value


def derivative(poly, times=1):
    for _ in range(times):
        poly = [power * c for power, c in enumerate(poly)][1:]
    return poly


def integral(poly, low, high):
    """The area between two places."""
    whole = [0] + [c / (power + 1) for power, c in enumerate(poly)]
    return value(whole, high) - value(whole, low)


def root(poly, low, high, steps=60):
    """A root between two places where the signs differ, by halving; None where they do not."""
    if value(poly, low) == 0:
        return float(low)
    if value(poly, low) * value(poly, high) > 0:
        return None
    for _ in range(steps):
        middle = (low + high) / 2
        if value(poly, low) * value(poly, middle) <= 0:
            high = middle
        else:
            low = middle
    return round((low + high) / 2, 6)


def written(poly, name="x"):
    """As people write it, the highest power first: 3x^2 - x + 5."""
    parts = []
    for power in range(len(trimmed(poly)) - 1, -1, -1):
        c = poly[power]
        if c == 0:
            continue
        sign = "-" if c < 0 else "+"
        factor = "" if abs(c) == 1 and power > 0 else str(abs(c))
        letters = "" if power == 0 else name if power == 1 else f"{name}^{power}"
        parts.append((sign, factor + letters))
    if not parts:
        return "0"
    head = ("-" if parts[0][0] == "-" else "") + parts[0][1]
    return " ".join([head, *[f"{sign} {text}" for sign, text in parts[1:]]])
