"""An agent as many exist: OpenAI's client, one tool, a loop. It knows nothing of training.

    OPENAI_BASE_URL=… OPENAI_API_KEY=… python agent.py MODEL '12*11=?'

What is no number it does not take for an answer: then it forgets the conversation and asks once more.
"""

import ast
import asyncio
import json
import operator
import sys
from typing import Any

import openai

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Evaluates an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]
TRIES, ROUNDS = 2, 3
OPERATIONS: Any = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


async def solve(client: openai.AsyncOpenAI, model: str, question: str) -> str:
    """The answer to a question, or what was said last in its place."""
    said = ""
    for _ in range(TRIES):
        said = await talk(client, model, question)
        if said.lstrip("-").isdigit():
            break
    return said


async def talk(client: openai.AsyncOpenAI, model: str, question: str) -> str:
    """One conversation: calls are run and answered until there are none."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(ROUNDS):
        told = await client.chat.completions.create(model=model, messages=messages, tools=TOOLS)
        said = told.choices[0].message
        if not said.tool_calls:
            return said.content or ""
        messages.append(said.model_dump(exclude_none=True))
        for call in said.tool_calls:
            expression = json.loads(call.function.arguments).get("expression", "")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": calculate(expression)})
    return ""


def calculate(expression: str) -> str:
    """The value of an expression of whole numbers with +, - and *; what is wrong with it, where it is none."""
    try:
        return str(value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "error"


def value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 10**6:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand)
    raise ValueError


if __name__ == "__main__":
    print(asyncio.run(solve(openai.AsyncOpenAI(), *sys.argv[1:])))
