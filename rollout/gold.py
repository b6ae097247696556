"""A policy that says what it is told: each task's gold answer, or a wrong one. It needs no model.

Played through the real agent, environment, tools, reward, chat format and limits, so that what a solved task earns is
known before anything is trained.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

from models.chat import ChatFormat
from models.tokenizer import Tokenizer
from rollout.cast import Cast, load_cast
from rollout.collect import TrajectoryCollectEngine
from rollout.endpoint import Endpoint, largest_request
from rollout.episode import Job
from rollout.formats import ChatFormats
from rollout.hooks import HookTimeout, call, said, within
from rollout.making import made, put_away
from rollout.program_player import ProgramPlayer
from rollout.programs import ProgramEnvironment
from rollout.scripted import ScriptedEngine
from schemas.config import Run
from schemas.data import Task
from schemas.errors import RequestError
from schemas.messages import Message
from schemas.trajectory import Trajectory

WRONG = ("?", "!")
"""What a wrong answer says: the first that is not in the gold one."""


class Prompter:
    """Plays episodes in which the policy says given turns."""

    def __init__(self, config: Run, folder: str, tokenizer: Tokenizer) -> None:
        self._config, self._tokenizer = config, tokenizer
        self.cast: Cast = load_cast(config.environment, folder)
        self.chat: ChatFormat = ChatFormats(tokenizer).of(self.cast.tool_specs)
        self._endpoint: Endpoint | None = None
        self._starting = asyncio.Lock()

    async def close(self) -> None:
        """Stop what it has started."""
        if self._endpoint is not None:
            await self._endpoint.stop()

    async def gold(self, task: Task, where: str) -> list[Message]:
        """The turns that solve a task, from an environment that is made for this only; empty where it knows none.

        RequestError names `where`, the task file, where the environment raises or returns no assistant messages.
        """
        limits = self._config.environment
        try:
            environment = await made(self.cast, task, limits.step_seconds)
            try:
                found = await within(limits.step_seconds, call(environment.gold))
            finally:
                await within(limits.step_seconds, put_away(environment))
        except HookTimeout as error:
            raise RequestError(
                f"{where}: `gold` of the task `{task.id}` took longer than {limits.step_seconds:g} s"
            ) from error
        except Exception as error:
            raise RequestError(
                f"{where}: `gold` of the task `{task.id}` raised {type(error).__name__}: {said(error)}"
            ) from error
        if not isinstance(found, list | tuple) or not all(_assistant(m) for m in found):
            raise RequestError(f"{where}: `gold` of the task `{task.id}` must return a list of assistant messages")
        return list(found)

    async def say(self, job: Job, turns: Sequence[Message]) -> Trajectory:
        """The episode in which these turns are said in their order."""
        return await self._play(job, iter(turns))

    async def say_wrong(self, job: Job, gold: Sequence[Message]) -> Trajectory:
        """The episode in which every turn is a short text that does not answer."""
        said_before = {m.content.strip() for m in gold}
        text = next((t for t in WRONG if t not in said_before), WRONG[-1] * 2)
        return await self._play(job, repeat(Message("assistant", text)))

    async def _play(self, job: Job, turns: Iterator[Message]) -> Trajectory:
        formats = ChatFormats(self._tokenizer)
        formats.of(self.cast.tool_specs)

        def script(stream: tuple[int, ...], seed: int, version: int) -> list[int]:
            message = next(turns, None)
            if message is None:
                raise ValueError("all its turns are said, but the environment does not call the episode done")
            assert formats.newest is not None  # whoever asks has written a prompt
            return formats.newest.assistant(message)

        length = self._config.rollout.max_length
        engine = ScriptedEngine(script, version=0, max_length=length, decode=self._tokenizer.decode)
        collector = await self._collector(engine, formats)
        return await collector.collect(job)

    async def _collector(self, engine: ScriptedEngine, formats: ChatFormats) -> TrajectoryCollectEngine:
        config = self._config
        names: dict[str, Any] = {"run": config.name, "seed": 0, "worker": "gold", "temperature": 1.0}
        if not issubclass(self.cast.environment, ProgramEnvironment):
            return TrajectoryCollectEngine(engine, self.chat, self.cast, config, **names)
        async with self._starting:
            if self._endpoint is None:
                endpoint = Endpoint(largest_request(config.rollout))
                await endpoint.start()
                self._endpoint = endpoint
        return ProgramPlayer(engine, formats, self.cast, config, self._endpoint, **names)


def _assistant(message: object) -> bool:
    return isinstance(message, Message) and message.role == "assistant"
