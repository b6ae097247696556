"""The number in a text that is an answer, however it is written.

`42`, `42.0`, `$1,234`, `3/4`, `1 1/2`, `\\boxed{7}`, `#### 42`. Exact: numbers are read as fractions, so that `0.5` is
`1/2`. The text is a model's and so is hostile: long numbers are not read, and nothing is evaluated.
"""

import re
from fractions import Fraction

MAX_DIGITS = 40
"""Longer numbers are taken for none."""
TOLERANCE = Fraction(1, 10**6)
"""How far a number may lie from the right one, as a share of it: calculators round."""
_PLAIN = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    rf"""(?P<sign>[-+\u2212]?) \s? [$€£]?
    (?: (?P<whole>\d+) \s (?=\d+\s?/\s?\d) )?
    (?P<top>{_PLAIN}) (?: \s?/\s? (?P<bottom>{_PLAIN}) )? (?P<exponent>[eE][-+]?\d{{1,2}}\b)?""",
    re.VERBOSE,
)
_FRACTION = re.compile(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}")
_MARKED = (re.compile(r"####\s*([^\n]*)"), re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}"))


def read_number(text: str) -> Fraction | None:
    """The number that a text ends with: behind its last `####`, else in its last `\\boxed{}`, else the last in it.

    None where there is no number, a denominator is 0, or a number has more than `MAX_DIGITS` digits.
    """
    for marked in _MARKED:
        if found := marked.findall(text):
            text = found[-1]
            break
    text = _FRACTION.sub(r"\1/\2", text)
    numbers = list(_NUMBER.finditer(text))
    return _value(text, numbers[-1]) if numbers else None


def same_answer(given: str, right: str) -> bool:
    """Whether a reply's number is that of the right answer; where that has none, whether both are the same text."""
    wanted = read_number(right)
    if wanted is None:
        return bool(given.strip()) and given.strip().casefold() == right.strip().casefold()
    found = read_number(given)
    return found is not None and abs(found - wanted) <= TOLERANCE * abs(wanted)


def _value(text: str, number: re.Match[str]) -> Fraction | None:
    parts = [number[name].replace(",", "") if number[name] else "1" for name in ("top", "bottom")]
    if any(len(part) > MAX_DIGITS for part in parts) or not float(parts[1]):
        return None
    value = Fraction(parts[0]) / Fraction(parts[1]) + Fraction((number["whole"] or "0")[:MAX_DIGITS])
    if number["exponent"]:
        value *= Fraction(10) ** int(number["exponent"][1:])
    return -value if _negative(text, number) else value


def _negative(text: str, number: re.Match[str]) -> bool:
    """A minus sign stands before it, and not between two values as in `9-4` and `9 - 4`."""
    before = text[: number.start()]
    spaced = number[0][1:2].isspace()
    last = (before.rstrip() if spaced else before)[-1:]
    return number["sign"] in ("-", "\u2212") and not (last.isalnum() or last == ")")
