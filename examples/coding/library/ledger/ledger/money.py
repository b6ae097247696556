"""Amounts in words and shares, interest, transfers."""


def written(cents, sign="EUR"):
    """1234567 as 12,345.67 EUR."""
    minus = "-" if cents < 0 else ""
    whole, rest = divmod(abs(cents), 100)
    return f"{minus}{whole:,}.{rest:02d} {sign}"


def read(text):
    """The cents of a text such as 12,345.67; ValueError for more than two places."""
    text = text.replace(",", "").strip()
    negative = text.startswith("-")
    whole, _, rest = text.lstrip("-").partition(".")
    if len(rest) > 2:
        raise ValueError("there are no parts of a cent")
    cents = int(whole) * 100 + int(rest.ljust(2, "0"))
    return -cents if negative else cents


def shared(cents, people):
    """Shares that differ by a cent at most and add up; the first ones get more."""
    each, left = divmod(cents, people)
    return [each + 1 if i < left else each for i in range(people)]


def with_interest(cents, percent, years, yearly=True):
    """The amount after some years, in cents that are rounded down; simple interest unless `yearly`."""
    if not yearly:
        return cents + cents * percent * years // 100
    for _ in range(years):
        cents += cents * percent // 100
    return cents


def transfer(giver, taker, amount):
    """Move money between accounts, whole or not at all; says whether it was moved."""
    if giver is taker or amount > giver.balance() + giver.overdraft:
        return False
    giver.withdraw(amount, f"to {taker.owner}")
    taker.deposit(amount, f"from {giver.owner}")
    return True
