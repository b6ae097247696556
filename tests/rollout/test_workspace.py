"""Tools in a working folder: what models read, what trajectories keep, and folders that commands made hostile."""

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.configuration import small
from support.rollouts import CALL, END, TOKENIZER, TOOL

from models.chat import chat_format
from rollout.cast import load_cast
from rollout.collect import TrajectoryCollectEngine
from rollout.episode import Job
from rollout.sandbox import Limits
from rollout.sandbox_bubblewrap import FOLDER
from rollout.sandbox_choice import SANDBOXES, why_not_bubblewrap
from rollout.scripted import ScriptedEngine
from rollout.tools import ToolManager, ToolOutput
from rollout.workspace import Workspace
from rollout.workspace_tools import EditTool, PythonTool, ShellTool, ViewTool, bound_tools
from schemas.data import Task
from schemas.errors import RequestError
from schemas.messages import ToolCall

pytestmark = pytest.mark.skipif(not shutil.which("prlimit"), reason="needs Linux with prlimit")
BACKENDS = [b for b in SANDBOXES if b != "bubblewrap" or not why_not_bubblewrap()]


@pytest.fixture(params=BACKENDS)
async def workspace(request: pytest.FixtureRequest) -> AsyncIterator[Workspace]:
    made = Workspace(SANDBOXES[request.param](), Limits(output_bytes=200, seconds=30))
    made.open({"notes.txt": "one\ntwo\nthree\n", "sub/add.py": "def add(a, b):\n    return a - b\n"})
    yield made
    await made.close()


async def used(workspace: Workspace, name: str, **arguments: Any) -> ToolOutput:
    tools = bound_tools(ToolManager([PythonTool(), ShellTool(), ViewTool(), EditTool()]), workspace)
    return await tools.run(ToolCall(name, arguments))


async def test_a_bug_is_found_and_mended(workspace: Workspace) -> None:
    failing = await used(workspace, "shell", command="cd sub && python3 -c 'import add; assert add.add(1, 2) == 3'")
    assert "AssertionError" in failing.text and failing.text.endswith("(Exit status 1.)")
    assert (await used(workspace, "view", path="sub/add.py", first=2)).text == "     2      return a - b"
    assert not (await used(workspace, "edit", path="sub/add.py", old="a - b", new="a + b")).error
    code = "import sys; sys.path.insert(0, 'sub'); import add; print(add.add(1, 2))"
    mended = await used(workspace, "python", code=code)
    assert mended.text == "3"
    backend = workspace.sandbox.name
    assert mended.facts["sandbox"] == {
        "exit_status": 0, "stdout_truncated": False, "stderr_truncated": False, "truncated": False, "ended": "",
        "backend": backend,
    }  # fmt: skip


async def test_commands_and_tools_share_their_files(workspace: Workspace) -> None:
    await used(workspace, "edit", path="new/deep/file.txt", old="", new="made by a tool\n")
    changed = await used(workspace, "shell", command="echo more >> new/deep/file.txt && cat $PWD/new/deep/file.txt")
    assert changed.text == "made by a tool\nmore"
    path = (await used(workspace, "shell", command="pwd")).text + "/new/deep/file.txt"
    assert "more" in (await used(workspace, "view", path=path)).text


async def test_long_output_keeps_its_start_and_its_end(workspace: Workspace) -> None:
    found = await used(workspace, "python", code="print('start' + 'x' * 5000 + 'end')")
    assert found.text.startswith("startxxx") and "xxxend\n(Only 200 bytes" in found.text
    assert "4809 bytes left out" in found.text
    assert found.facts["sandbox"]["truncated"] and found.facts["sandbox"]["stdout_truncated"]


async def test_edits_must_be_unique_and_new_files_new(workspace: Workspace) -> None:
    twice = await used(workspace, "edit", path="notes.txt", old="t", new="x")
    assert twice.error and "occurs 2 times" in twice.text
    absent = await used(workspace, "edit", path="notes.txt", old="four", new="x")
    assert absent.error and "occurs 0 times" in absent.text
    assert (await used(workspace, "edit", path="notes.txt", old="", new="x")).error
    assert workspace.read("notes.txt") == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "sub/../../x", "", ".", "a\0b", f"{FOLDER}/../etc/passwd", "\ud800"]
)
async def test_paths_stay_in_the_folder(workspace: Workspace, path: str) -> None:
    assert (await used(workspace, "view", path=path)).error
    assert (await used(workspace, "edit", path=path, old="", new="x")).error


async def test_links_pipes_and_folders_are_no_files(workspace: Workspace, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("secret")
    await used(workspace, "shell", command=f"ln -s {kept} a; ln -s {tmp_path} b; mkfifo c; ln -s sub d; ln -s {kept} e")
    for path in ("a", "b/kept", "c", "d/add.py", "sub"):
        found = await used(workspace, "view", path=path)
        assert found.error and "secret" not in found.text
        assert (await used(workspace, "edit", path=path, old="", new="x")).error
    workspace.write("e", "mine")  # takes the link's place
    assert (kept.read_text(), workspace.read("e")) == ("secret", "mine")


@pytest.mark.parametrize("command", ["a\0b", "\ud800", "x" * 70_000])
async def test_what_no_program_can_be_given_is_told_to_the_model(workspace: Workspace, command: str) -> None:
    assert (await used(workspace, "shell", command=command)).error
    assert (await used(workspace, "python", code=command)).error


async def test_a_folder_that_resists_is_removed(workspace: Workspace) -> None:
    code = (
        "import os\nfor _ in range(300):\n    os.mkdir('d' * 50); os.chdir('d' * 50)\nos.chmod('.', 0)\nos.chdir('/')\n"
    )
    await used(workspace, "python", code=code)
    folder = workspace.folder
    await workspace.close()
    assert not folder.exists()


async def test_a_cancelled_command_ends_before_its_folder_goes(workspace: Workspace) -> None:
    running = asyncio.ensure_future(used(workspace, "shell", command="while :; do echo x >> ticks; sleep 0.01; done"))
    async with asyncio.timeout(30):
        while not workspace.exists("ticks"):
            await asyncio.sleep(0.01)
    folder = workspace.folder
    running.cancel()
    await workspace.close()
    assert not folder.exists()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_command_that_is_cancelled_while_it_starts_leaves_nothing_behind(workspace: Workspace) -> None:
    command = f"sleep 3600.{os.getpid()}"
    running = asyncio.ensure_future(used(workspace, "shell", command=f"{command} & echo > begun; wait"))
    end = time.monotonic() + 30
    while not workspace.exists("begun") and time.monotonic() < end:
        await asyncio.sleep(0)
        time.sleep(0.05)  # the loop hears nothing of the command, which gets ahead of it
    running.cancel()
    await asyncio.wait([running])
    assert await _ended(command)


async def test_a_command_that_is_cancelled_at_any_moment_leaves_nothing_behind(workspace: Workspace) -> None:
    command = f"sleep 3600.{os.getpid()}"
    for number in range(40):
        running = asyncio.ensure_future(used(workspace, "shell", command=f"{command} & {command}"))
        await asyncio.sleep(number / 1000)
        running.cancel()
        await asyncio.wait([running])
    assert await _ended(command)


async def _ended(command: str) -> bool:
    """Whether no process of this command is left, once they had time to end."""
    end = time.monotonic() + 30
    while running := [p for p in psutil.process_iter(["cmdline"]) if command in " ".join(p.info["cmdline"] or ())]:
        if time.monotonic() > end:
            break
        await asyncio.sleep(0.2)
    return not running


def _script(stream: Sequence[int], seed: int, version: int) -> list[int]:
    """Runs a program that prints much, then answers with what it has read first."""
    if TOOL in stream:
        at = len(stream) - list(stream)[::-1].index(TOOL)
        return [*stream[at : at + 2], END]
    return [CALL, *b"print('42' * 900)", END]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_the_trajectory_says_which_sandbox_ran_and_what_was_cut(backend: str) -> None:
    options = {"sandbox": backend, "limits": {"output_bytes": 100}}
    environment = {"environment": "WorkspaceEnvironment", "tools": ["python"], "options": options}
    run = small(environment=environment, rollout={"script": "scripts:solve", "max_length": 1000, "engine": "scripted"})
    cast = load_cast(run.environment, ".")
    engine, chat = ScriptedEngine(_script, version=0), chat_format(TOKENIZER, cast.tool_specs)
    made = TrajectoryCollectEngine(engine, chat, cast, run, run="r", seed=7, worker="w", temperature=1.0)
    before = set(_folders())
    row = await made.collect(Job(0, 0, 0, Task("t", "Say 42", "42", {"files": {"a/b.txt": "x"}})))
    assert (row.status, row.reward, row.detail) == ("succeeded", 1.0, "")
    said = next(m for m in json.loads(row.messages) if m["role"] == "tool")
    assert (said["facts"]["sandbox"]["backend"], said["facts"]["sandbox"]["truncated"]) == (backend, True)
    assert set(_folders()) <= before


def _folders() -> list[str]:
    return [n for n in os.listdir(tempfile.gettempdir()) if n.startswith("headrace-workspace-")]


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"tools": ["shell"]}, "`shell` needs a working folder"),
        ({"environment": "WorkspaceEnvironment", "options": {"sandbox": "box"}}, "no sandbox `box`"),
        ({"environment": "WorkspaceEnvironment", "options": {"limits": {"hours": 1}}}, "has no `hours`"),
        ({"environment": "WorkspaceEnvironment", "options": {"limits": {"seconds": -1}}}, "must be a number above 0"),
        ({"environment": "WorkspaceEnvironment", "options": {"limits": {"files": "9"}}}, "must be a number above 0"),
    ],
)
def test_what_can_not_work_is_refused_at_once(environment: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        load_cast(small(environment=environment).environment, ".")
