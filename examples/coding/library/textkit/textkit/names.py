"""Names in the ways that programs write them."""


def words_of(name):
    """The words of a name such as `someName`, `some_name` or `some-name`, in lower case."""
    found, word = [], ""
    for sign in name:
        if sign in "_- ":
            if word:
                found.append(word)
            word = ""
        elif sign.isupper() and word and not word[-1].isupper():
            found.append(word)
            word = sign
        else:
            word += sign
    if word:
        found.append(word)
    return [w.lower() for w in found]


def snake(name):
    return "_".join(words_of(name))


def camel(name, upper=False):
    first, *rest = words_of(name)
    head = first.capitalize() if upper else first
    return head + "".join(word.capitalize() for word in rest)


def initials(name, most=3):
    """The first letters of the first words."""
    return "".join(word[0].upper() for word in words_of(name)[:most])
