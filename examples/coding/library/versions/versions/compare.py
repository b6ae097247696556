"""Versions read and compared."""


def read(text):
    """((1, 4, 2), "beta"); ValueError where a part is no number."""
    numbers, _, label = text.strip().removeprefix("v").partition("-")
    parts = numbers.split(".")
    if not all(part.isdigit() for part in parts):
        raise ValueError("a part is no number")
    return tuple(int(part) for part in parts), label


def compared(one, other):
    """-1, 0 or 1. Missing parts count as 0, and a version with a label comes before the same one without."""
    (left, left_label), (right, right_label) = read(one), read(other)
    size = max(len(left), len(right))
    left, right = left + (0,) * (size - len(left)), right + (0,) * (size - len(right))
    if left != right:
        return -1 if left < right else 1
    if left_label == right_label:
        return 0
    if not left_label:
        return 1
    if not right_label:
        return -1
    return -1 if left_label < right_label else 1


def newest(texts, labels=False):
    """The highest version; those with labels count only if wanted. None where there is none."""
    best = None
    for text in texts:
        if read(text)[1] and not labels:
            continue
        if best is None or compared(text, best) > 0:
            best = text
    return best


def raised(text, part=2):
    """The next version in which the part (0, 1 or 2) is one higher and all after it are 0."""
    numbers = list(read(text)[0]) + [0] * 3
    return ".".join(str(n) for n in [*numbers[:part], numbers[part] + 1, *([0] * (2 - part))])
