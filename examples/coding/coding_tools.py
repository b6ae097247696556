"""The tool of the recipe beside those built in: run the repository's tests."""

from typing import Any, ClassVar

from rollout.tools import ToolOutput
from rollout.workspace_tools import WorkspaceTool, output


class RunTests(WorkspaceTool):
    """The visible tests, as the agent has left them."""

    name: ClassVar[str] = "run_tests"
    description: ClassVar[str] = "Runs the tests in the folder tests and shows what fails."
    parameters: ClassVar[dict[str, Any]] = {"type": "object", "properties": {}}

    async def apply(self) -> ToolOutput:
        command = ["python3", "-m", "unittest", "discover", "-s", "tests", "-t", "."]
        return output(await self.workspace.run(command), self.workspace.limits)
