"""Roman numerals from 1 to 3999."""

SIGNS = [
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
    (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
]  # fmt: skip


def to_roman(number):
    if not 0 < number < 4000:
        raise ValueError("Roman numerals are from 1 to 3999")
    parts = []
    for value, sign in SIGNS:
        count = number // value
        parts.append(sign * count)
        number -= value * count
    return "".join(parts)


def from_roman(text):
    """The number; ValueError for what `to_roman` would not write."""
    values = {sign: value for value, sign in SIGNS}
    total, at = 0, 0
    while at < len(text):
        two, one = text[at : at + 2], text[at]
        if two in values:
            total += values[two]
            at += 2
        elif one in values:
            total += values[one]
            at += 1
        else:
            raise ValueError("not a Roman numeral")
    if total == 0 or to_roman(total) != text:
        raise ValueError("not a Roman numeral")
    return total
