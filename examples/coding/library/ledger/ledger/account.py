"""One account with its entries."""


class Account:
    def __init__(self, owner, overdraft=0):
        self.owner = owner
        self.overdraft = overdraft
        self.entries = []

    def balance(self):
        return sum(amount for amount, _ in self.entries)

    def deposit(self, amount, text=""):
        if amount <= 0:
            raise ValueError("deposit more than nothing")
        self.entries.append((amount, text))
        return self.balance()

    def withdraw(self, amount, text=""):
        """Take money; ValueError where it would go below the overdraft."""
        if amount <= 0:
            raise ValueError("withdraw more than nothing")
        if self.balance() - amount < -self.overdraft:
            raise ValueError("there is not enough")
        self.entries.append((-amount, text))
        return self.balance()

    def lowest(self):
        """The lowest balance that there ever was, 0 at the start."""
        low, running = 0, 0
        for amount, _ in self.entries:
            running += amount
            low = min(low, running)
        return low

    def found(self, word):
        """The amounts of entries with a word in their text."""
        return [amount for amount, text in self.entries if word.lower() in text.lower()]
