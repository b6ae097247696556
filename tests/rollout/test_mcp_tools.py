"""Tools of an MCP server: what is offered, a server for each episode, and servers that fail."""

import contextlib
import os
import sys
from pathlib import Path

import psutil
import pytest

from rollout.cast import load_cast
from rollout.hooks import HookTimeout, settle, within
from rollout.mcp_session import Command
from rollout.mcp_tools import MCPServer, MCPTool
from rollout.tools import ToolManager
from schemas.config import Environment
from schemas.errors import RequestError
from schemas.messages import ToolCall

pytest.importorskip("mcp", reason="needs the extra `mcp`")
pytestmark = pytest.mark.slow  # each test starts servers

SERVER = '''
import os
from mcp.server import MCPServer

server, seen = MCPServer("counter"), []


@server.tool()
def add(number: int) -> str:
    """Adds a number to what this server has seen."""
    seen.append(number)
    return f"{os.getpid()} {sum(seen)}"


@server.tool()
def broken() -> str:
    """Fails."""
    raise ValueError("out of order")


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(1)


@server.tool()
def much() -> str:
    """Says too much."""
    return "x" * 10_000


server.run()
'''


@pytest.fixture
def kind(tmp_path: Path) -> type[MCPServer]:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    search = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return type("Counter", (MCPServer,), {"command": (sys.executable, str(path)), "variables": search})


async def test_each_episode_has_a_server_of_its_own(kind: type[MCPServer]) -> None:
    tools = ToolManager(kind().tools())
    spec = next(s for s in tools.specs if s.name == "add")
    assert "Adds a number" in spec.description and spec.parameters["properties"]["number"]["type"] == "integer"
    first, second = tools.for_episode(), tools.for_episode()
    said = [(await t.run(ToolCall("add", {"number": 5}))).text.split() for t in (first, first, second)]
    assert [s[1] for s in said] == ["5", "10", "5"] and said[0][0] == said[1][0] != said[2][0]
    wrong = await first.run(ToolCall("add", {"number": "five"}))
    failed = await first.run(ToolCall("broken", {}))
    assert wrong.error and failed.error and "broken" in failed.text
    cut = await first.run(ToolCall("much", {}))
    assert len(cut.text) == 6000 and cut.facts["mcp"]["truncated"]
    for episode in (first, second):
        await episode.close()
    for pid in (int(said[0][0]), int(said[2][0])):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_server_that_dies_fails_its_call(kind: type[MCPServer]) -> None:
    episode = ToolManager(kind().tools()).for_episode()
    with pytest.raises(Exception, match="onnection"):
        await episode.run(ToolCall("die", {}))
    await episode.close()


@pytest.mark.parametrize("seconds", [0.01, 1.0])
async def test_a_server_that_never_answers_is_ended_with_its_episode(seconds: float) -> None:
    program = f"import time; time.sleep(3600.{os.getpid()})"
    tool = MCPTool(Command((sys.executable, "-c", program), {}), "wait", "", {})
    episode = ToolManager([tool]).for_episode()
    with pytest.raises(HookTimeout):
        await within(seconds, episode.run(ToolCall("wait", {})))
    with contextlib.suppress(HookTimeout):
        await within(0.2, episode.close())
    await settle(60)
    assert not [p for p in psutil.process_iter(["cmdline"]) if program in (p.info["cmdline"] or ())]
    with pytest.raises(RuntimeError, match="is closed"):
        await episode.run(ToolCall("wait", {}))


def test_a_configuration_names_a_server(kind: type[MCPServer], tmp_path: Path) -> None:
    (tmp_path / "counting_servers.py").write_text(
        f"from rollout.mcp_tools import MCPServer\n\n\nclass Counter(MCPServer):\n    command = {kind.command!r}\n"
        f"    variables = {kind.variables!r}\n    only = ('much', 'add')\n"
    )
    specs = load_cast(Environment(tools=("counting_servers:Counter",)), str(tmp_path)).tool_specs
    assert [s.name for s in specs] == ["much", "add"]


def test_servers_that_can_not_be_asked_are_refused(kind: type[MCPServer]) -> None:
    for changes, complaint in (
        ({"only": ("fly",)}, "has no tool `fly`"),
        ({"command": ("no-such-program",)}, "did not say what tools it has"),
        ({"command": ("true",)}, "did not say what tools it has"),
    ):
        with pytest.raises(RequestError, match=complaint):
            type("Changed", (kind,), changes)().tools()
