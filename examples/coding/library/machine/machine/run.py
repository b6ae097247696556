"""Programs as text, one word an instruction."""


def run(program, inputs=(), limit=1000):
    """The stack at the end of a program; ValueError for a wrong one or one that takes too long."""
    words, stack, at, waiting = program.split(), [], 0, list(inputs)
    for _ in range(limit):
        if at >= len(words):
            return stack
        word = words[at]
        at += 1
        if word.lstrip("-").isdigit():
            stack.append(int(word))
        elif word == "read":
            stack.append(waiting.pop(0) if waiting else 0)
        elif word in ("jump", "jumpzero"):
            target = pop(stack)
            if word == "jump" or pop(stack) == 0:
                at = target
        else:
            apply(word, stack)
    raise ValueError("the program takes too long")


def pop(stack):
    if not stack:
        raise ValueError("the stack is empty")
    return stack.pop()


def apply(word, stack):
    """One instruction that only changes the stack."""
    if word == "dup":
        top = pop(stack)
        stack += [top, top]
    elif word == "drop":
        pop(stack)
    elif word == "swap":
        second, first = pop(stack), pop(stack)
        stack += [second, first]
    elif word in OPERATIONS:
        right, left = pop(stack), pop(stack)
        stack.append(OPERATIONS[word](left, right))
    else:
        raise ValueError(f"unknown word {word}")


def divided(left, right):
    if right == 0:
        raise ValueError("division by zero")
    return left // right


OPERATIONS = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": divided,
    "<": lambda left, right: int(left < right),
    "=": lambda left, right: int(left == right),
}
