"""Old ciphers of the letters a to z."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def shifted(letter, by):
    """A letter moved in the alphabet, in its case; anything else stays."""
    if letter.lower() not in LETTERS:
        return letter
    moved = LETTERS[(LETTERS.index(letter.lower()) + by) % 26]
    return moved.upper() if letter.isupper() else moved


def caesar(text, by=3):
    return "".join(shifted(letter, by) for letter in text)


def vigenere(text, key, back=False):
    """Every letter moved by the next letter of the key; other signs use up none of it."""
    out, used = "", 0
    for letter in text:
        by = LETTERS.index(key[used % len(key)])
        out += shifted(letter, -by if back else by)
        if letter.lower() in LETTERS:
            used += 1
    return out


def rail_fence(text, rails=2):
    """The text written down and up over so many lines, and read line by line."""
    lines = [""] * rails
    line, step = 0, 1
    for sign in text:
        lines[line] += sign
        if line == 0:
            step = 1
        elif line == rails - 1:
            step = -1
        line += step if rails > 1 else 0
    return "".join(lines)


def checksum(text, size=97):
    """A number below `size` that changes if two signs change places."""
    total = 0
    for place, sign in enumerate(text, 1):
        total = (total + place * ord(sign)) % size
    return total
