"""Numbers in bases from 2 to 36, and in words."""

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def to_base(number, base=10, width=0):
    """The digits of a number, filled up with zeros to `width`."""
    if base < 2 or base > len(DIGITS):
        raise ValueError("a base is from 2 to 36")
    sign = "-" if number < 0 else ""
    number, digits = abs(number), ""
    while number > 0:
        digits = DIGITS[number % base] + digits
        number = number // base
    return sign + (digits or "0").rjust(width, "0")


def from_base(text, base=10):
    negative = text.startswith("-")
    total = 0
    for sign in text[1:] if negative else text:
        digit = DIGITS.index(sign)
        if digit >= base:
            raise ValueError("a digit is too large for the base")
        total = total * base + digit
    return -total if negative else total


def digit_sum(number, base=10):
    total = 0
    while number > 0:
        total += number % base
        number = number // base
    return total


def words(number):
    """A number below 1000 in English words."""
    if number < 20:
        return ONES[number]
    if number < 100:
        tens = TENS[number // 10 - 2]
        return tens if number % 10 == 0 else tens + "-" + ONES[number % 10]
    hundreds = ONES[number // 100] + " hundred"
    if number % 100 == 0:
        return hundreds
    return hundreds + " and " + words(number % 100)


def ordinal(number):
    """1st, 2nd, 3rd, 4th and so on."""
    if number % 100 in (11, 12, 13):
        return str(number) + "th"
    return str(number) + {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
