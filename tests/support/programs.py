"""Episodes that a program plays: an endpoint, an engine with a script, and programs with OpenAI's own client."""

import json
import ssl
from collections.abc import Callable
from typing import Any

import openai

from rollout.calculator import CalculatorTool
from rollout.cast import Cast, load_cast
from rollout.endpoint import Endpoint, largest_request
from rollout.engine import Engine
from rollout.episode import Job
from rollout.formats import ChatFormats
from rollout.program_player import ProgramPlayer
from rollout.programs import Address, ProgramEnvironment
from rollout.scripted import ScriptedEngine
from schemas.data import Task
from schemas.trajectory import Trajectory
from support.rollouts import TOKENIZER, config, solve

TLS = ssl.create_default_context()
"""Clients that make one each take 20 ms for it."""
TASK = Task("t", "12*11=?", "132", {})
SPEC = CalculatorTool().spec
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": SPEC.name, "description": SPEC.description, "parameters": SPEC.parameters},
    }
]


async def episode(
    program: type[ProgramEnvironment],
    script: Any = solve,
    tokenizer: Any = TOKENIZER,
    afterwards: Callable[[], Any] | None = None,
    **changes: Any,
) -> Trajectory:
    """The row of one episode. `script`: an engine, or what a scripted one answers with. `afterwards` is awaited while
    the endpoint still serves."""
    run = config(**{"environment": {"tools": []}} | changes)
    length = run.rollout.max_length
    engine: Engine = (
        ScriptedEngine(script, version=0, max_length=length, decode=tokenizer.decode) if callable(script) else script
    )
    built = load_cast(run.environment, ".")
    cast = Cast(run.environment, built.agent, program, built.tools, built.score)
    endpoint = Endpoint(largest_request(run.rollout))
    await endpoint.start()
    try:
        player = ProgramPlayer(
            engine, ChatFormats(tokenizer), cast, run, endpoint, run="test", seed=7, worker="w", temperature=1.0
        )
        row = await player.collect(Job(3, 1, 0, TASK))
        if afterwards is not None:
            await afterwards()
        return row
    finally:
        await endpoint.stop()


def world(look: Callable[[Any, Address], Any]) -> type[ProgramEnvironment]:
    """An environment whose program is `look`, with a client of OpenAI's that asks once."""

    class World(ProgramEnvironment):
        async def act(self, address: Address) -> str | None:
            async with openai.AsyncOpenAI(
                base_url=address.base_url, api_key=address.api_key, max_retries=0,
                http_client=openai.DefaultAsyncHttpxClient(verify=TLS),
            ) as client:  # fmt: skip
                return await look(client, address)

    return World


async def use_the_tool(client: Any, address: Address, question: str = TASK.prompt, **asked: Any) -> str | None:
    """What an ordinary agent does: ask, run the calls, ask again, until there are none."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        told = await client.chat.completions.create(model=address.model, messages=messages, tools=TOOLS, **asked)
        said = told.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return said.content
        for call in said.tool_calls:
            result = await CalculatorTool().apply(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
