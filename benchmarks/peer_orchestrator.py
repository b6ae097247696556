"""The peer's side of `orchestrator.py`, for a Python that has `google-tunix`: its orchestrator, agent and environment.

The model is a function that answers at once, as ours is; the tool waits in the thread in which the peer calls it, of
which there is one for every episode, as its learner sets it up. Trajectories are collected as its learner asks.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from absl import logging
from side import answer
from tunix.rl.agentic import utils
from tunix.rl.agentic.agents.tool_agent import ToolAgent
from tunix.rl.agentic.environments.tool_environment import ToolEnvironment
from tunix.rl.agentic.pipeline.rollout_orchestrator import RolloutOrchestrator
from tunix.rl.agentic.tools.base_tool import BaseTool, ToolOutput
from tunix.rl.rollout.base_rollout import RolloutOutput

CALLS, GROUP = 3, 8
CALL = '<tool_call>\n{"name": "wait", "arguments": {"seconds": %s}}\n</tool_call>'


class Wait(BaseTool):
    """Answers after a while."""

    def get_json_schema(self) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"seconds": {"type": "number"}}, "required": ["seconds"]}
        return {"type": "function", "function": {"name": self.name, "description": "", "parameters": parameters}}

    def apply(self, seconds: float) -> ToolOutput:
        time.sleep(seconds)
        return ToolOutput(name=self.name, output="waited")


def start() -> Callable[..., None]:
    logging.set_verbosity(logging.ERROR)
    tools = {"wait": Wait}

    def work(episodes: int, seconds: float) -> None:
        def model(chat: list[dict[str, str]], *_: Any, **__: Any) -> RolloutOutput:
            called = sum(message["role"] == "assistant" for message in chat)
            text = "done" if called == CALLS else CALL % seconds
            tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
            return RolloutOutput([text], [], [tokens], None, [np.zeros(len(tokens), np.float32)])

        def pairs() -> Iterator[tuple[ToolAgent, ToolEnvironment]]:
            for number in range(episodes):
                task = {"question": f"task {number // GROUP}", "policy_version": 0}
                world = ToolEnvironment(task, tool_map=tools, group_id=number // GROUP, pair_index=number)
                yield ToolAgent("", "qwen", tools), world

        asyncio.run(play(pairs, episodes, model))

    return work


async def play(pairs: Callable[[], Any], episodes: int, model: Callable[..., RolloutOutput]) -> None:
    """All episodes at once; what they become is taken in batches of a group, as the learner takes it."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(episodes + 1))
    orchestrator = RolloutOrchestrator(
        rollout_sync_lock=utils.RolloutSyncLock(), max_concurrency=episodes,
        engine_kwargs={"model_call": model, "timeout": 600.0},
    )  # fmt: skip
    producing = asyncio.ensure_future(
        orchestrator.run_producers_from_stream(
            pairs(), group_size=GROUP, group_key_fn=lambda i, _, __: i // GROUP, collect_mode="Token"
        )
    )
    await asyncio.sleep(0)
    taken = itertools.count()
    async for batch in orchestrator.yield_batches(GROUP):
        for _ in batch:
            if next(taken) == episodes - 1:
                await producing
                return
    await producing


if __name__ == "__main__":
    answer(start)
