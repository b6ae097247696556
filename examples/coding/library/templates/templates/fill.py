"""`Hello {name}` with values."""


def filled(template, values, missing=None):
    """The text; {{ and }} are brackets. A name without a value is a KeyError, unless `missing` is given."""
    out, at = "", 0
    while at < len(template):
        two = template[at : at + 2]
        if two in ("{{", "}}"):
            out += two[0]
            at += 2
        elif template[at] == "{":
            end = template.find("}", at)
            if end < 0:
                raise ValueError("a bracket is not closed")
            out += looked_up(template[at + 1 : end].strip(), values, missing)
            at = end + 1
        else:
            out += template[at]
            at += 1
    return out


def looked_up(name, values, missing=None):
    """The value of a name such as `user.name`, as text; after | stands what is done with it."""
    path, *filters = [part.strip() for part in name.split("|")]
    value = values
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            if missing is None:
                raise KeyError(path)
            return missing
        value = value[part]
    text = str(value)
    for one in filters:
        text = FILTERS[one](text)
    return text


FILTERS = {
    "upper": lambda text: text.upper(),
    "title": lambda text: text.title(),
    "trim": lambda text: text.strip(),
    "quote": lambda text: '"' + text + '"',
}
