"""How alike words are."""


def distance(one, other):
    """The fewest insertions, deletions and replacements of letters."""
    before = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        row = [i]
        for j, right in enumerate(other, 1):
            cost = 0 if left == right else 1
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + cost))
        before = row
    return before[-1]


def nearest(word, words, most=2):
    """The nearest of the words within `most` changes, the first of several; None where there is none."""
    best, least = None, most + 1
    for other in words:
        found = distance(word, other)
        if found < least:
            best, least = other, found
    return best


def common_beginning(words):
    if not words:
        return ""
    first, last = min(words), max(words)
    for at, letter in enumerate(first):
        if at >= len(last) or last[at] != letter:
            return first[:at]
    return first


def is_anagram(one, other):
    """Whether two texts have the same letters; spaces and case do not count."""
    left, right = (sorted(text.replace(" ", "").lower()) for text in (one, other))
    return left == right and one.lower() != other.lower()


def is_palindrome(text):
    letters = [sign.lower() for sign in text if sign.isalnum()]
    return letters == letters[::-1]


def longest_common(one, other):
    """The longest text that is part of both; the first of several."""
    best = ""
    for start in range(len(one)):
        end = start + len(best) + 1
        while end <= len(one) and one[start:end] in other:
            best = one[start:end]
            end += 1
    return best
