"""The calculator tool: arithmetic from a syntax tree, with bounds that hold before anything large is computed.

The text is the model's and so is hostile: nothing is evaluated as Python, and every number stays below 10**100.
"""

import ast
import math
import operator
from collections.abc import Callable
from typing import ClassVar

from rollout.tools import BaseTool, ToolError

MAX_CHARACTERS = 200
MAX_DEPTH = 40
MAX_EXPONENT = 1000
LIMIT = 10**100
"""No operand or result may be larger."""

Number = int | float


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > MAX_EXPONENT:
        raise ToolError("the exponent is too large")
    if abs(base) > 1 and exponent * math.log10(abs(base)) > 101:
        raise ToolError("the result is too large")
    result = base**exponent
    if isinstance(result, complex):
        raise ToolError("the result is not a real number")
    return result


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculate(expression: str) -> Number:
    """The value of an arithmetic expression of numbers, + - * / // % ** and parentheses.

    ToolError says what is wrong with it.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ToolError(f"the expression is longer than {MAX_CHARACTERS} characters")
    if not expression.isascii():
        raise ToolError("the expression must be plain ASCII")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError("that is not an arithmetic expression") from error
    return _value(tree.body, 0)


def _value(node: ast.AST, depth: int) -> Number:
    if depth > MAX_DEPTH:
        raise ToolError("the expression is nested too deeply")
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand, depth + 1))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left, depth + 1), _value(node.right, depth + 1)
        try:
            return _bounded(_BINARY[type(node.op)](left, right))
        except ZeroDivisionError as error:
            raise ToolError("division by zero") from error
        except OverflowError as error:
            raise ToolError("the result is too large") from error
    raise ToolError("only numbers, + - * / // % ** and parentheses are allowed")


def _bounded(value: Number) -> Number:
    if not abs(value) <= LIMIT:  # also catches not-a-number
        raise ToolError("a number is too large")
    return value


def written(value: Number) -> str:
    """A result as people write it: whole numbers without a point, others with at most ten digits."""
    if isinstance(value, int) or (int(value) == value and abs(value) < 1e15):
        return str(int(value))
    return f"{value:.10g}"


class CalculatorTool(BaseTool):
    """Built in as `calculator`. Its work is bounded, so it runs on the event loop."""

    name: ClassVar[str] = "calculator"
    description: ClassVar[str] = "Evaluates an arithmetic expression with + - * / // % ** and parentheses."
    parameters: ClassVar[dict[str, object]] = {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "For example 47*38+215"}},
        "required": ["expression"],
    }

    async def apply(self, expression: str) -> str:
        return written(calculate(expression))
