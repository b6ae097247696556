"""From one date to others."""

from caldates.gregorian import is_valid, month_length, weekday


def next_day(date):
    year, month, day = date
    if day < month_length(year, month):
        return (year, month, day + 1)
    if month < 12:
        return (year, month + 1, 1)
    return (year + 1, 1, 1)


def plus_days(date, days):
    for _ in range(days):
        date = next_day(date)
    return date


def plus_months(date, months):
    """The same day of a later month, or its last one."""
    year, month, day = date
    count = year * 12 + month - 1 + months
    year, month = count // 12, count % 12 + 1
    return (year, month, min(day, month_length(year, month)))


def is_workday(date, holidays=()):
    return weekday(date) < 5 and date not in holidays


def plus_workdays(date, days, holidays=()):
    """The date so many workdays later."""
    while days > 0:
        date = next_day(date)
        if is_workday(date, holidays):
            days -= 1
    return date


def read(text):
    """A date written YYYY-MM-DD; ValueError where there is none such."""
    parts = text.split("-")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise ValueError("a date is YYYY-MM-DD")
    date = (int(parts[0]), int(parts[1]), int(parts[2]))
    if not is_valid(date):
        raise ValueError("there is no such day")
    return date
