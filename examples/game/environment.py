"""FrozenLake as text: the agent sees the map, says a move, and sees the map again, until it falls in or arrives.

`game.toml` names it as `environment = "environment:FrozenLake"`. A task is its map (`prompt`) and a shortest path.
"""

from collections.abc import Mapping, Sequence

from lake import MOVES, Outcome, read_lake, shortest_path

from rollout.agents import Action
from rollout.environments import BaseTaskEnv, StepResult
from rollout.rewards import RewardFunction, exact_match
from rollout.tools import ToolManager
from schemas.data import Task
from schemas.messages import Message

WORDS = {"left": "l", "right": "r", "up": "u", "down": "d"}


class FrozenLake(BaseTaskEnv):
    """One lake. `max_turns` of the configuration bounds the moves; who has not arrived by then earns nothing."""

    def __init__(self, task: Task, *, score: RewardFunction = exact_match, tools: ToolManager | None = None) -> None:
        super().__init__(task, score=score, tools=tools)
        self.lake = read_lake(task.prompt)
        self.outcome = Outcome.ICE
        self.moves = 0

    async def step(self, action: Action) -> StepResult:
        """Move; what is no move is answered with the moves that there are, and costs a turn."""
        move = read_move(action.text)
        if not move:
            return StepResult([Message("user", f"l, r, u or d?\n{self.lake.text()}")])
        self.lake, self.outcome = self.lake.moved(move)
        self.moves += 1
        if self.outcome is Outcome.ICE:
            return StepResult([Message("user", self.lake.text())])
        return StepResult(done=True)

    async def reward(self, messages: Sequence[Message]) -> Mapping[str, float]:
        """1 at the goal, 0 in a hole. `detour` is only recorded: moves beyond the fewest that there are."""
        arrived = float(self.outcome is Outcome.GOAL)
        return {"reward": arrived, "success": arrived, "detour": arrived * (self.moves - len(self.task.answer))}

    async def gold(self) -> Sequence[Message]:
        """A shortest path, found here and not read from the task."""
        return [Message("assistant", move) for move in shortest_path(self.lake) or ""]


def read_move(text: str) -> str:
    """The move that a reply means: a letter or a word in any case; "" where it means none."""
    word = text.strip().strip(".").lower()
    word = WORDS.get(word, word)
    return word if word in MOVES else ""
