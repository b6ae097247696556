"""Words for lists and numbers."""

from templates.fill import filled


def listed(items, word="and", most=0):
    """`a, b and c`; with `most`, the others are counted."""
    items = [str(item) for item in items]
    if most and len(items) > most:
        left = len(items) - most
        items = [*items[:most], plural(left, "other")]
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + f" {word} " + items[-1]


def plural(count, noun, nouns=""):
    if count == 1:
        return f"1 {noun}"
    if nouns:
        return f"{count} {nouns}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{count} {noun[:-1]}ies"
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{count} {noun}es"
    return f"{count} {noun}s"


def each(template, rows, between="\n"):
    """The template filled for every row; `{number}` counts from 1."""
    return between.join(filled(template, {**row, "number": i}) for i, row in enumerate(rows, 1))


def ago(seconds):
    """How long ago, in the largest unit that fits."""
    for size, noun in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return plural(seconds // size, noun) + " ago"
    return "just now"
