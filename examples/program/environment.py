"""All that it takes to train the agent of `agent.py` as it is; `program.toml` names `environment:Calculations`."""

import ssl
from collections.abc import Sequence

import openai
from agent import solve

from rollout.programs import Address, ProgramEnvironment
from schemas.messages import Message, ToolCall

TLS = ssl.create_default_context()
"""Nothing is encrypted here, but every client would make a context of its own, which takes 20 ms."""


class Calculations(ProgramEnvironment):
    """One question; the agent's answer is scored."""

    async def act(self, address: Address) -> str:
        async with openai.AsyncOpenAI(
            base_url=address.base_url, api_key=address.api_key, http_client=openai.DefaultAsyncHttpxClient(verify=TLS)
        ) as client:
            return await solve(client, address.model, self.task.prompt)

    async def gold(self) -> Sequence[Message]:
        """What the model should say to the agent's requests."""
        call = ToolCall("calculator", {"expression": self.task.prompt.removesuffix("=?")})
        return [Message("assistant", tool_calls=(call,)), Message("assistant", self.task.answer)]
