"""Text in lines of a width."""


def wrap(text, width):
    """Lines of at most `width` characters; a longer word has a line of its own."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        elif line:
            line = line + " " + word
        else:
            line = word
    if line:
        lines.append(line)
    return lines


def centered(text, width, fill=" "):
    """The text in the middle; the odd character goes to the right."""
    space = max(0, width - len(text))
    left = space // 2
    return fill * left + text + fill * (space - left)


def shortened(text, width, mark="..."):
    """The text, cut to `width` characters with a mark at its end where it is longer."""
    if len(text) <= width:
        return text
    if width < len(mark):
        return text[:width]
    return text[: width - len(mark)] + mark


def indented(text, by=4, first=True):
    """Every line that is not empty moved to the right; the first one only if wanted."""
    out = []
    for number, line in enumerate(text.split("\n")):
        if not line or (number == 0 and not first):
            out.append(line)
        else:
            out.append(" " * by + line)
    return "\n".join(out)


def columns(rows, gap=2):
    """Rows of texts as lines with columns that are as wide as they must be."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(widths[i]) for i, cell in enumerate(row)]
        lines.append((" " * gap).join(cells).rstrip())
    return lines
