"""A table with a header."""

from records.split import fields, joined


def parsed(text, separator=","):
    """A list of objects by the names in the first line; ValueError where a line has another number of fields."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return []
    header = fields(lines[0], separator)
    rows = []
    for number, line in enumerate(lines[1:], 2):
        values = fields(line, separator)
        if len(values) != len(header):
            raise ValueError(f"line {number} has {len(values)} fields, not {len(header)}")
        rows.append({name: values[i] for i, name in enumerate(header)})
    return rows


def written(rows, names):
    lines = [joined(names)]
    for row in rows:
        lines.append(joined([row.get(name, "") for name in names]))
    return "\n".join(lines)


def numbers(rows, name, default=0.0):
    """The values of a column as numbers; `default` for an empty one."""
    return [float(row[name]) if row[name] else default for row in rows]


def grouped(rows, by, value):
    """The sums of a column for each value of another, in the order of their first record."""
    sums = {}
    for row in rows:
        sums[row[by]] = sums.get(row[by], 0.0) + float(row[value] or 0)
    return list(sums.items())


def ordered(rows, name, descending=False):
    return sorted(rows, key=lambda row: row[name], reverse=descending)
