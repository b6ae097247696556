"""Polynomials added, multiplied, divided."""


def trimmed(poly):
    """Without zeros at the high end."""
    end = len(poly)
    while end > 0 and poly[end - 1] == 0:
        end -= 1
    return poly[:end]


def degree(poly):
    """The highest power; -1 for zero."""
    return len(trimmed(poly)) - 1


def plus(one, other):
    size = max(len(one), len(other))
    left, right = one + [0] * (size - len(one)), other + [0] * (size - len(other))
    return trimmed([left[i] + right[i] for i in range(size)])


def times(one, other):
    out = [0] * (len(one) + len(other))
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            out[i + j] += a * b
    return trimmed(out)


def value(poly, x):
    total = 0
    for coefficient in reversed(poly):
        total = total * x + coefficient
    return total


def divided(poly, by):
    """The quotient and the rest; ZeroDivisionError for zero."""
    by = trimmed(by)
    if not by:
        raise ZeroDivisionError("division by the polynomial zero")
    rest, quotient = trimmed(poly), [0] * max(0, degree(poly) - degree(by) + 1)
    while len(rest) >= len(by):
        shift = len(rest) - len(by)
        factor = rest[-1] / by[-1]
        quotient[shift] = factor
        rest = trimmed([c - factor * by[i - shift] if i >= shift else c for i, c in enumerate(rest[:-1])])
    return quotient, rest
