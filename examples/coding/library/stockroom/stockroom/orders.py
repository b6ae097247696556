"""Orders: prices, discounts, and whether they can be filled."""


def price(lines, prices, discount=0):
    """The price in cents of (article, count) lines, with a discount in percent, rounded down."""
    total = 0
    for article, count in lines:
        total += prices[article] * count
    return total * (100 - discount) // 100


def discount_for(total, regular=False):
    """Percent: 5 from 10000 cents, 10 from 50000; two more for regular customers."""
    percent = 0
    if total >= 50000:
        percent = 10
    elif total >= 10000:
        percent = 5
    return percent + 2 if regular else percent


def shipping(total, weight, free_from=20000):
    """Cents: nothing from `free_from`, else 400 for two kilograms and 150 for every further one begun (in grams)."""
    if total >= free_from:
        return 0
    if weight <= 2000:
        return 400
    further = (weight - 2000 + 999) // 1000
    return 400 + 150 * further


def missing(lines, stock):
    """What the stock lacks for an order, as {article: count}."""
    wanted = {}
    for article, count in lines:
        wanted[article] = wanted.get(article, 0) + count
    return {
        article: count - stock.get(article, 0) for article, count in wanted.items() if count > stock.get(article, 0)
    }


def filled(orders, stock):
    """The numbers of the orders that can be filled one after the other, each whole or not at all."""
    left, done = dict(stock), []
    for number, lines in enumerate(orders):
        if not missing(lines, left):
            for article, count in lines:
                left[article] -= count
            done.append(number)
    return done
