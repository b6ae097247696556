"""Run lengths: aaab is a3b."""


def packed(text):
    out, at = "", 0
    while at < len(text):
        end = at
        while end < len(text) and text[end] == text[at]:
            end += 1
        count = end - at
        out += text[at] + (str(count) if count > 1 else "")
        at = end
    return out


def unpacked(text):
    """What `packed` has made (of a text without digits); ValueError where it begins with a digit."""
    out, at = "", 0
    while at < len(text):
        sign = text[at]
        if sign.isdigit():
            raise ValueError("a number without a sign")
        end = at + 1
        while end < len(text) and text[end].isdigit():
            end += 1
        out += sign * int(text[at + 1 : end] or 1)
        at = end
    return out


def longest_run(text):
    """The sign that is repeated most often in a row, and how often; the first of several."""
    best, count = "", 0
    run = 0
    for at, sign in enumerate(text):
        run = run + 1 if at > 0 and text[at - 1] == sign else 1
        if run > count:
            best, count = sign, run
    return best, count
