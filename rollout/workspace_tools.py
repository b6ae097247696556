"""Tools that act in an episode's working folder: `python` and `shell` in the sandbox, `view` and `edit` for its files.

A configuration names them; `WorkspaceEnvironment` binds them to the folder of its episode.
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from rollout.sandbox import Limits, SandboxResult
from rollout.tools import BaseTool, ToolError, ToolManager, ToolOutput
from rollout.workspace import MAX_FILE, Workspace

MAX_COMMAND = 64 * 2**10
"""Bytes of a command or program."""
MAX_VIEW = 6000
"""Characters that one view shows."""


class WorkspaceTool(BaseTool):
    """A tool over a workspace. Subclasses implement `apply` with `self.workspace`.

    Calls of one turn act one after the other: a model that edits and then runs means that order.
    """

    concurrent: ClassVar[bool] = False
    _workspace: Workspace | None = None

    @property
    def workspace(self) -> Workspace:
        if self._workspace is None:
            raise RuntimeError(f"the tool `{self.name}` has no workspace: use the environment WorkspaceEnvironment")
        return self._workspace

    def bound(self, workspace: Workspace) -> "WorkspaceTool":
        """This tool for one episode."""
        made = copy.copy(self)
        made._workspace = workspace
        return made


def bound_tools(tools: ToolManager, workspace: Workspace) -> ToolManager:
    """The same tools, of which those that need a workspace have it."""
    return tools.replaced(t.bound(workspace) if isinstance(t, WorkspaceTool) else t for t in tools.tools)


class PythonTool(WorkspaceTool):
    """Built in as `python`: a program in a fresh interpreter of the sandbox."""

    name: ClassVar[str] = "python"
    description: ClassVar[str] = "Runs a Python program in the working folder; shows what it prints."
    parameters: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "For example print(6 * 7)"}},
        "required": ["code"],
    }

    async def apply(self, code: str) -> ToolOutput:
        return output(await self.workspace.run(["python3", "-"], stdin=_checked(code)), self.workspace.limits)


class ShellTool(WorkspaceTool):
    """Built in as `shell`: a command of a fresh shell."""

    name: ClassVar[str] = "shell"
    description: ClassVar[str] = "Runs a shell command in the working folder; shows its output."
    parameters: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "For example ls -l"}},
        "required": ["command"],
    }

    async def apply(self, command: str) -> ToolOutput:
        text = _checked(command).decode()
        return output(await self.workspace.run(["sh", "-c", text]), self.workspace.limits)


class ViewTool(WorkspaceTool):
    """Built in as `view`: a text file with line numbers."""

    name: ClassVar[str] = "view"
    description: ClassVar[str] = "Shows a text file of the working folder with line numbers."
    parameters: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "first": {"type": "integer", "description": "The first line to show; 1 if left out"},
            "last": {"type": "integer", "description": "The last line to show; the file's last if left out"},
        },
        "required": ["path"],
    }

    def apply(self, path: str, first: int = 1, last: int | None = None) -> str:
        return numbered(self.workspace.read(path).splitlines(), first, last)


class EditTool(WorkspaceTool):
    """Built in as `edit`: replaces a text that occurs once, or makes a new file."""

    name: ClassVar[str] = "edit"
    description: ClassVar[str] = (
        "Replaces a text that occurs exactly once in a file of the working folder. An empty `old` makes a new file."
    )
    parameters: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "old": {"type": "string"}, "new": {"type": "string"}},
        "required": ["path", "old", "new"],
    }

    def apply(self, path: str, old: str, new: str) -> str:
        if not old:
            if self.workspace.exists(path):
                raise ToolError(f"{path!r} exists already: say in `old` which text to replace")
            return self._write(path, new)
        text = self.workspace.read(path)
        if (count := text.count(old)) != 1:
            raise ToolError(f"`old` occurs {count} times in {path!r}: it must occur exactly once")
        return self._write(path, text.replace(old, new))

    def _write(self, path: str, text: str) -> str:
        if len(text) > MAX_FILE:
            raise ToolError(f"{path!r} would have more than {MAX_FILE} characters")
        self.workspace.write(path, text)
        return f"{path} is written."


def numbered(lines: Sequence[str], first: int, last: int | None) -> str:
    """Lines `first` to `last` (from 1, both shown) with their numbers; what doesn't fit is said to be left out."""
    end = len(lines) if last is None else min(last, len(lines))
    if not lines:
        return "(The file is empty.)"
    if not 1 <= first <= end:
        raise ToolError(f"the file has the lines 1 to {len(lines)}")
    shown, size = [], 0
    for number in range(first, end + 1):
        line = f"{number:6}  {lines[number - 1]}"
        size += len(line) + 1
        if size > MAX_VIEW and shown:
            return "\n".join([*shown, f"(Lines {number} to {end} are left out: ask for them with `first`.)"])
        shown.append(line[:MAX_VIEW])
    return "\n".join(shown)


def output(result: SandboxResult, limits: Limits) -> ToolOutput:
    """What the model reads of a command, and what the trajectory keeps of how it ran."""
    said = [result.stdout.rstrip("\n"), result.stderr.rstrip("\n")]
    notes = []
    if result.truncated:
        notes.append(f"(Only {limits.output_bytes} bytes of an output are shown: its start and its end.)")
    if result.ended:
        notes.append(f"(It was ended: {_ENDED[result.ended]}.)")
    elif result.exit_status:
        notes.append(f"(Exit status {result.exit_status}.)")
    text = "\n".join(part for part in (*said, *notes) if part)
    return ToolOutput(text or "(No output.)", facts={"sandbox": _facts(result)})


_ENDED = {
    "time": "it took too long",
    "memory": "it used too much memory",
    "disk": "it wrote too much",
    "processes": "it started too many processes",
    "output": "it printed too much",
}


def _facts(result: SandboxResult) -> dict[str, Any]:
    kept = {k: v for k, v in asdict(result).items() if k not in ("stdout", "stderr")}
    return kept | {"truncated": result.truncated}


def _checked(text: str) -> bytes:
    """What can be handed to a program; ToolError for what can't."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ToolError("the text can't be written as UTF-8") from error
    if b"\0" in data or len(data) > MAX_COMMAND:
        raise ToolError(f"the text must have at most {MAX_COMMAND} bytes and no zero byte")
    return data
