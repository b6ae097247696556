"""Lines with separators and quotes to fields, and back."""


def fields(line, separator=",", quote='"'):
    """The fields of a line; ValueError for a quote that is not closed."""
    found, field, quoted, at = [], "", False, 0
    while at < len(line):
        sign = line[at]
        if quoted and sign == quote and line[at + 1 : at + 2] == quote:
            field += quote
            at += 1
        elif sign == quote:
            quoted = not quoted
        elif sign == separator and not quoted:
            found.append(field)
            field = ""
        else:
            field += sign
        at += 1
    if quoted:
        raise ValueError("a quote is not closed")
    return [*found, field]


def joined(values, separator=",", quote='"'):
    """The line that `fields` reads back as these values."""
    parts = []
    for value in values:
        if separator in value or quote in value:
            value = quote + value.replace(quote, quote + quote) + quote
        parts.append(value)
    return separator.join(parts)
