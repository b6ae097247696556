"""Bugs that people make, put into correct Python source: each is one replacement of text, all else stays as it was."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """The characters `start` to `end` of a source become `text`."""

    kind: str
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
}


class Source:
    """A parsed source whose nodes have places in its text (which must be ASCII)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def line(self, number: int) -> int:
        """Where a line begins; lines count from 1."""
        return self._lines[number - 1]

    def of(self, node: ast.expr | ast.stmt) -> str:
        return self.text[self.start(node) : self.end(node)]

    def between(self, left: ast.expr, right: ast.expr, sign: str) -> tuple[int, int] | None:
        """The place of an operator's sign between its operands."""
        at = self.text.find(sign, self.end(left), self.start(right))
        return None if at < 0 else (at, at + len(sign))


def off_by_one(source: Source) -> Iterator[Mutation]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value < 1000:
            for value in (node.value + 1, node.value - 1):
                if value >= 0:
                    yield Mutation("off by one", source.start(node), source.end(node), str(value))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
            end = node.args[min(1, len(node.args) - 1)]
            yield Mutation("off by one", source.end(end), source.end(end), " - 1")
            yield Mutation("off by one", source.end(end), source.end(end), " + 1")


def swapped_comparison(source: Source) -> Iterator[Mutation]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Compare):
            for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                sign, others = COMPARISONS[type(op)]
                place = source.between(left, right, sign)
                yield from (Mutation("swapped comparison", *place, other) for other in others if place)


def wrong_operator(source: Source) -> Iterator[Mutation]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            sign, other = OPERATORS[type(node.op)]
            if place := source.between(node.left, node.right, sign):
                yield Mutation("wrong operator", *place, other)
        if isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
            sign, other = OPERATORS[type(node.op)]
            if place := source.between(node.target, node.value, f"{sign}="):
                yield Mutation("wrong operator", *place, f"{other}=")
        if isinstance(node, ast.BoolOp):
            sign, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                if place := source.between(left, right, sign):
                    yield Mutation("wrong operator", *place, other)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield Mutation("wrong operator", source.start(node), source.start(node.operand), "")


def missing_return(source: Source) -> Iterator[Mutation]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Return) and node.value is not None:
            yield Mutation("missing return", source.start(node), source.start(node.value), "")


def wrong_default(source: Source) -> Iterator[Mutation]:
    for function in _functions(source):
        for default in (*function.args.defaults, *(d for d in function.args.kw_defaults if d)):
            if isinstance(default, ast.Constant):
                for value in _other_values(default.value):
                    yield Mutation("wrong default", source.start(default), source.end(default), repr(value))


def _other_values(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    return [f"{value} " if value else " "] if isinstance(value, str) else []


def wrong_variable(source: Source) -> Iterator[Mutation]:
    for function in _functions(source):
        arguments = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)} - {"self"}
        nodes = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
        known = sorted(arguments | {n.id for n in nodes if isinstance(n.ctx, ast.Store)})
        for node in nodes:
            if isinstance(node.ctx, ast.Load) and node.id in known and len(known) > 1:
                other = known[(known.index(node.id) + 1) % len(known)]
                yield Mutation("wrong variable", source.start(node), source.end(node), other)


def dropped_branch(source: Source) -> Iterator[Mutation]:
    for parent in ast.walk(source.tree):
        for block in (getattr(parent, name, None) for name in ("body", "orelse")):
            for node in block if isinstance(block, list) else ():
                if isinstance(node, ast.If) and not node.orelse and len(block) > 1:
                    yield Mutation("dropped branch", *_lines(source, node.lineno, node.end_lineno), "")
                if isinstance(node, ast.If) and node.orelse and not _is_elif(source, node):
                    first = node.body[-1].end_lineno or 0
                    yield Mutation("dropped branch", *_lines(source, first + 1, node.orelse[-1].end_lineno), "")


def _lines(source: Source, first: int, last: int | None) -> tuple[int, int]:
    return source.line(first), source.line((last or first) + 1)


def _is_elif(source: Source, node: ast.If) -> bool:
    return source.of(node.orelse[0]).startswith("elif")


def swapped_arguments(source: Source) -> Iterator[Mutation]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and len(node.args) > 1:
            one, two = node.args[:2]
            between = source.text[source.end(one) : source.start(two)]
            text = source.of(two) + between + source.of(one)
            yield Mutation("swapped arguments", source.start(one), source.end(two), text)


def _functions(source: Source) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef))


KINDS: tuple[Callable[[Source], Iterator[Mutation]], ...] = (
    off_by_one, swapped_comparison, wrong_operator, missing_return, wrong_default, wrong_variable, dropped_branch,
    swapped_arguments,
)  # fmt: skip


def mutations(text: str) -> list[Mutation]:
    """Every mutation of a source that still is Python and means something else, each result once; in a fixed order."""
    source, seen, found = Source(text), {ast.dump(ast.parse(text))}, []
    for mutation in (one for kind in KINDS for one in kind(source)):
        try:
            meaning = ast.dump(ast.parse(mutation.applied(text)))
        except SyntaxError:
            continue
        if meaning not in seen:
            seen.add(meaning)
            found.append(mutation)
    return found
