"""The calculator on honest and hostile text."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.calculator import CalculatorTool, calculate, written
from rollout.tools import ToolError, ToolManager
from schemas.messages import ToolCall


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("47*38", "1786"),
        (" 47 * (38 - 2) ", "1692"),
        ("-3--4", "1"),
        ("7/2", "3.5"),
        ("8/2", "4"),
        ("7//2", "3"),
        ("-7%3", "2"),
        ("2**10", "1024"),
        ("2**-1", "0.5"),
        ("0.1+0.2", "0.3"),
        ("+5", "5"),
        ("1e3", "1000"),
        ("1/3", "0.3333333333"),
        ("10**20", "100000000000000000000"),
    ],
)
def test_arithmetic(text: str, result: str) -> None:
    assert written(calculate(text)) == result


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?",
        "1+",
        "__import__('os').system('true')",
        "(lambda: 1)()",
        "a",
        "True",
        "'a'*10",
        "[1]*5",
        "1 if 1 else 2",
        "1<2",
        "3j",
        "1_0_0 @ 2",
        "x:=5",
        "9**9**9",
        "9**999999999",
        "10**100 * 10",
        "2**(2**(2**(2**2)))",
        "(-8)**0.5",
        "1/0",
        "5%0",
        "0**-1",
        "1e999",
        "1e308*10",
        "1e999-1e999",
        "9" * 150,
        "-(" * 60 + "1" + ")" * 60,
        "-" * 150 + "1",
        "1+" * 5000 + "1",
        "9" * 100_000,
        "\u0661+1",
        "1\x00",
        "1;2",
        "\ud800",
    ],
)
def test_hostile_text_is_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ToolError):
        calculate(text)
    assert time.process_time() - began < 1.0


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="0123456789+-*/%(). e", max_size=60))
def test_any_text_gives_a_bounded_number_or_a_tool_error(text: str) -> None:
    try:
        value = calculate(text)
    except ToolError:
        return
    assert abs(value) <= 10**100
    assert len(written(value)) < 120


async def test_what_the_model_got_wrong_is_answered_as_text() -> None:
    tools = ToolManager([CalculatorTool()])
    calls = [
        ToolCall("calculator", {"expression": "6*7"}),
        ToolCall("calculator", {"expression": "1/0"}),
        ToolCall("calculator", {}),
        ToolCall("calculator", {"expression": 5}),
        ToolCall("calculator", {"expression": "1", "other": "2"}),
        ToolCall("shell", {}),
    ]
    outputs = [await tools.run(c) for c in calls]
    assert [o.error for o in outputs] == [False, True, True, True, True, True]
    assert outputs[0].text == "42"
    assert outputs[1].text == "Error: division by zero"
    assert outputs[2].text == "Error: the argument 'expression' is missing."
    assert outputs[5].text == "Error: there is no tool 'shell'; the tools are: calculator."
