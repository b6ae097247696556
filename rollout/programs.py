"""Programs that exist already as environments: what they ask an OpenAI-compatible model is recorded and trained.

A program decides itself what it says to the model, which tools it offers and runs, and when it is done.
"""

import asyncio
import contextlib
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rollout.agents import Action
from rollout.environments import BaseTaskEnv, StepResult
from rollout.sandbox_child import kill_session, started

OUTPUT = 1 << 20
"""Bytes of a command's answer that are read; it is ended when it writes more."""
ERRORS = 4096
"""Bytes of its error output that are kept, the last ones."""
LOOK_SECONDS = 0.05
GRACE = 1.0
"""Seconds for pipes to close once the command has ended."""


@dataclass(frozen=True)
class Address:
    """Where an episode's model answers, as OpenAI's clients take it."""

    base_url: str
    api_key: str
    model: str


class ProgramEnvironment(BaseTaskEnv):
    """An episode that a program plays. Subclasses implement `act`, plain or async."""

    model: ClassVar[str] = "policy"
    """The name by which the program asks for the model."""

    async def act(self, address: Address) -> str | None:
        """Run the program on `self.task`. Returns its answer, or None where the model's last turn is the answer.

        It has until the episode's deadline. The conversation that it led last, with its answer at the end, goes to
        `reward`.
        """
        raise NotImplementedError

    async def step(self, action: Action) -> StepResult:
        """Nothing: a program asks the model itself."""
        raise NotImplementedError


class CommandEnvironment(ProgramEnvironment):
    """A program that is a command. It finds its task on standard input, as a JSON object, and its model in
    OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL; what it writes to standard output is its answer.

    It runs with the worker's rights, in the folder of the class's file. Its whole session ends with the episode.
    """

    command: ClassVar[Sequence[str]]
    """The program and its arguments."""
    tells: ClassVar[Sequence[str]] = ()
    """Further fields of the task that it is told, beside `id` and `prompt`."""

    async def act(self, address: Address) -> str | None:
        told = {"id": self.task.id, "prompt": self.task.prompt} | {name: self.task.extra[name] for name in self.tells}
        environment = {
            "OPENAI_BASE_URL": address.base_url,
            "OPENAI_API_KEY": address.api_key,
            "OPENAI_MODEL": address.model,
        }
        folder = Path(inspect.getfile(type(self))).parent
        answer = await run_command(self.command, folder, environment, json.dumps(told).encode())
        return answer.strip() or None


async def run_command(command: Sequence[str], folder: Path, environment: Mapping[str, str], stdin: bytes) -> str:
    """What a command writes. RuntimeError where it ends with another status than 0. Its session never outlives this."""
    starting = asyncio.create_subprocess_exec(
        *command, cwd=folder, env={**os.environ, **environment}, start_new_session=True,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    process = await started(asyncio.ensure_future(starting))
    assert process.stdin and process.stdout and process.stderr  # they are pipes
    output, errors = bytearray(), bytearray()
    feeding = asyncio.ensure_future(_feed(process.stdin, stdin))
    reading = asyncio.ensure_future(_first(process.stdout, output, OUTPUT))
    complaining = asyncio.ensure_future(_last(process.stderr, errors, ERRORS))
    try:
        while process.returncode is None and (not reading.done() or len(output) < OUTPUT):
            await asyncio.sleep(LOOK_SECONDS)  # `wait` would also wait for whoever else holds a pipe
        if process.returncode is not None:
            await asyncio.wait({reading, complaining}, timeout=GRACE)
    finally:
        kill_session(process)
        for pipe in (feeding, reading, complaining):
            pipe.cancel()
        process._transport.close()  # type: ignore[attr-defined]  # the only way to let go of pipes that stay open
    if process.returncode:
        said = errors.decode(errors="replace").strip()
        raise RuntimeError(f"`{command[0]}` ended with status {process.returncode}: {said}")
    return output.decode(errors="replace")


async def _feed(pipe: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it reads no further
        pipe.write(data)
        await pipe.drain()
    pipe.close()


async def _first(pipe: asyncio.StreamReader, into: bytearray, most: int) -> None:
    while len(into) < most and (chunk := await pipe.read(65536)):
        into += chunk


async def _last(pipe: asyncio.StreamReader, into: bytearray, most: int) -> None:
    while chunk := await pipe.read(65536):
        into += chunk
        del into[:-most]
