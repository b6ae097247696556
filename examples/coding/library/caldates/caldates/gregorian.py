"""The calendar's arithmetic."""

LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def month_length(year, month):
    if month == 2 and is_leap(year):
        return 29
    return LENGTHS[month - 1]


def is_valid(date):
    year, month, day = date
    if month < 1 or month > 12:
        return False
    return 1 <= day <= month_length(year, month)


def day_of_year(date):
    """1 for the first of January."""
    year, month, day = date
    return sum(month_length(year, m) for m in range(1, month)) + day


def number(date):
    """Days since the first of January of the year 1, which is 1."""
    before = date[0] - 1
    return before * 365 + before // 4 - before // 100 + before // 400 + day_of_year(date)


def weekday(date):
    """0 for Monday."""
    return (number(date) - 1) % 7


def days_between(one, other):
    return abs(number(other) - number(one))
