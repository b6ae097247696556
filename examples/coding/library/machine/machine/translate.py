"""Expressions such as `(1 + 2) * 3` to programs."""

STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2}


def tokens(text):
    """Numbers, signs and brackets; ValueError for anything else."""
    found, at = [], 0
    while at < len(text):
        sign = text[at]
        if sign.isdigit():
            end = at
            while end < len(text) and text[end].isdigit():
                end += 1
            found.append(text[at:end])
            at = end
            continue
        if sign in STRENGTH or sign in "()":
            found.append(sign)
        elif not sign.isspace():
            raise ValueError(f"unknown sign {sign}")
        at += 1
    return found


def translated(text):
    """The program of an expression; ValueError where a bracket has no partner."""
    out, waiting = [], []
    for token in tokens(text):
        if token.isdigit():
            out.append(token)
        elif token == "(":
            waiting.append(token)
        elif token == ")":
            while waiting and waiting[-1] != "(":
                out.append(waiting.pop())
            if not waiting:
                raise ValueError("a bracket is not opened")
            waiting.pop()
        else:
            while waiting and waiting[-1] != "(" and STRENGTH[waiting[-1]] >= STRENGTH[token]:
                out.append(waiting.pop())
            waiting.append(token)
    while waiting:
        token = waiting.pop()
        if token == "(":
            raise ValueError("a bracket is not closed")
        out.append(token)
    return " ".join(out)
