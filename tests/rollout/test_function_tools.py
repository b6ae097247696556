"""Tools from typed functions: what the model is told, and what becomes of its arguments."""

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from rollout.cast import load_cast
from rollout.function_tools import tool
from rollout.tools import ToolError, ToolManager, ToolOutput
from schemas.config import Environment
from schemas.data import Task
from schemas.errors import RequestError
from schemas.messages import ToolCall


class Order(BaseModel):
    article: str
    count: int


@tool
def stock(article: str, shop: Literal["north", "south"] = "north", most: int | None = None) -> str:
    """How many of an article
    are left.

    Args:
        article: Its name,
            singular.
        most (int): No more than that.

    Returns:
        article: not an argument.
    """
    return f"{article} {shop} {most}"


@tool
async def order(orders: list[Order]) -> int:
    """Orders several articles."""
    return sum(o.count for o in orders)


async def called(kind: Any, **arguments: Any) -> ToolOutput:
    return await ToolManager([kind()]).run(ToolCall(kind.name, arguments))


def test_the_schema_comes_from_types_and_docstring() -> None:
    spec = stock().spec
    assert (spec.name, spec.description) == ("stock", "How many of an article are left.")
    assert spec.parameters["required"] == ["article"]
    assert spec.parameters["additionalProperties"] is False
    assert spec.parameters["properties"] == {
        "article": {"type": "string", "description": "Its name, singular."},
        "shop": {"type": "string", "enum": ["north", "south"], "default": "north"},
        "most": {
            "anyOf": [{"type": "integer"}, {"type": "null"}],
            "default": None,
            "description": "No more than that.",
        },
    }


def test_nested_types_are_told_to_the_model() -> None:
    schema = order().spec.parameters
    assert schema["properties"]["orders"]["items"] == {"$ref": "#/$defs/Order"}
    assert set(schema["$defs"]["Order"]["properties"]) == {"article", "count"}


async def test_arguments_are_converted() -> None:
    assert (await called(stock, article="pear", most=3)).text == "pear north 3"
    assert (await called(order, orders=[{"article": "pear", "count": 2}, {"article": "fig", "count": 3}])).text == "5"


@pytest.mark.parametrize(
    ("kind", "arguments", "complaint"),
    [
        (stock, {}, "'article' is missing"),
        (stock, {"article": "pear", "colour": "red"}, "no argument 'colour'"),
        (stock, {"article": "pear", "shop": "east"}, "shop: "),
        (order, {"orders": [{"article": "pear", "count": "many"}]}, "orders.0.count: "),
    ],
)
async def test_wrong_arguments_are_told_to_the_model(kind: Any, arguments: dict[str, Any], complaint: str) -> None:
    found = await called(kind, **arguments)
    assert found.error and complaint in found.text


async def test_a_tool_error_is_for_the_model_and_any_other_is_the_tools_own() -> None:
    @tool
    def refuse(x: int) -> int:
        raise ToolError("not today")

    @tool
    def broken(x: int) -> Order:
        return Order.model_validate({})

    assert (await called(refuse, x=1)).text == "Error: not today"
    with pytest.raises(ValueError, match="Order"):
        await called(broken, x=1)


def test_what_can_not_be_a_tool_is_refused() -> None:
    def untyped(x) -> None:  # type: ignore[no-untyped-def]
        """Nothing."""

    def many(*x: int) -> None:
        """Nothing."""

    def odd(x: object, y: Path.__init__) -> None:  # type: ignore[valid-type]
        """Nothing."""

    with pytest.raises(RequestError, match="`x` of the tool `untyped` has no type"):
        tool(untyped)
    with pytest.raises(RequestError, match="passed by name"):
        tool(many)
    with pytest.raises(RequestError, match="`odd`"):
        tool(odd)


def test_a_configuration_names_it(tmp_path: Path) -> None:
    (tmp_path / "functions_of_a_shop.py").write_text(
        "from rollout.function_tools import tool\n\n\n"
        "@tool\ndef ping() -> str:\n    '''Says pong.'''\n    return 'pong'\n"
    )
    specs = load_cast(Environment(tools=("functions_of_a_shop:ping",)), str(tmp_path)).tool_specs
    assert [(s.name, s.description, s.parameters["properties"]) for s in specs] == [("ping", "Says pong.", {})]


# -- methods of an environment ----------------------------------------------------------------------------------------

DOORS = """
from rollout.environments import ToolEnvironment
from rollout.function_tools import tool


class Doors(ToolEnvironment):
    heard = ()

    @tool
    def listen(self, door: int, twice: bool = False) -> str:
        '''Listens at a door.

        Args:
            door: Its number.
        '''
        self.heard = (*self.heard, door)
        return f"{self.task.id} {self.heard}"

    @tool
    async def wait(self) -> str:
        '''Does nothing.'''
        return self.listen(0)


class Locked(Doors):
    wait = None
"""


def doors(folder: Path, name: str = "Doors", **settings: Any) -> Any:
    (folder / "doors.py").write_text(DOORS)
    return load_cast(Environment(environment=f"doors:{name}", **settings), str(folder))


def test_methods_of_an_environment_are_offered(tmp_path: Path) -> None:
    cast = doors(tmp_path, tools=("calculator",))
    assert [s.name for s in cast.tool_specs] == ["calculator", "listen", "wait"]
    assert cast.tool_specs[1].parameters == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "door": {"type": "integer", "description": "Its number."}, "twice": {"type": "boolean", "default": False},
        },
        "required": ["door"],
    }  # fmt: skip
    assert cast.tool_specs[2].parameters == {"type": "object", "properties": {}}
    assert [s.name for s in doors(tmp_path, "Locked").tool_specs] == ["listen"]


async def test_a_method_acts_on_its_own_episode(tmp_path: Path) -> None:
    cast = doors(tmp_path)
    one, other = (cast.make_environment(Task(name, "?", "!")) for name in "ab")
    calls = [ToolCall("listen", {"door": 1}), ToolCall("listen", {"door": 2}), ToolCall("wait", {})]
    assert [o.text for o in await one.tools.outputs(calls)] == ["a (1,)", "a (1, 2)", "a (1, 2, 0)"]
    assert (await other.tools.run(calls[1])).text == "b (2,)"
    for wrong in ({"door": "x"}, {"door": 1, "self": None}, {}):
        assert (await other.tools.run(ToolCall("listen", wrong))).error
    assert other.heard == (2,)
