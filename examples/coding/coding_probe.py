"""A program for the sandbox: runs cases against a repository and writes down what each came to.

It knows no expected value: whoever reads its output compares. So the code under test, which shares its process, may
print, patch or exit as it likes: it can lose by that, and can't win.

One JSON object on stdin: `folder` (the repository), `setup` (imports), `cases` (programs whose last line is an
expression), `cpu_seconds`, and `shown` (also write each value as Python would). One JSON array a line on stdout:
[number, outcome, text], where an outcome is ["value", …] or ["raises", name of the exception].
"""

import ast
import json
import os
import resource
import sys

DEEPEST = 20
SHOWN = 300
"""Characters of a value's text."""


def encoded(value, depth=0):
    """A value as JSON that tells types apart; floats count to nine digits; what is no plain data is its type's name."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return ["float", format(value, ".9g")]
    if depth < DEEPEST and kind in (list, tuple):
        return [kind.__name__, *[encoded(one, depth + 1) for one in value]]
    if depth < DEEPEST and kind in (set, frozenset):
        return ["set", *sorted((encoded(one, depth + 1) for one in value), key=json.dumps)]
    if depth < DEEPEST and kind is dict:
        pairs = [[encoded(k, depth + 1), encoded(v, depth + 1)] for k, v in value.items()]
        return ["dict", *sorted(pairs, key=json.dumps)]
    return ["object", kind.__name__]


def outcome(setup, case):
    """What a case comes to, and its text."""
    names = {}
    try:
        exec(setup, names)
        *before, last = ast.parse(case).body
        exec(compile(ast.Module(before, []), "case", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "case", "eval"), names)
        return ["value", encoded(value)], repr(value)
    except BaseException as error:
        return ["raises", type(error).__name__], f"raises {type(error).__name__}"


def main():
    request = json.load(sys.stdin)
    seconds = request["cpu_seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the code under test prints is not heard
    sys.path.append(request["folder"])  # last: no file of the repository stands in for a library
    for number, case in enumerate(request["cases"]):
        found, text = outcome(request["setup"], case)
        print(json.dumps([number, found, text[:SHOWN] if request["shown"] else ""]), file=out, flush=True)


if __name__ == "__main__":
    main()
