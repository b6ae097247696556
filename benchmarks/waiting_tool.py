"""What `orchestrator.py` has a worker play: a tool that waits, and a policy that calls it three times and then answers.

A task's prompt says for how many seconds.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from models.tokenizer import ByteTokenizer
from rollout.tools import BaseTool

CALLS = 3
_IDS = ByteTokenizer()
_TOOL, _CALL, _END = (_IDS.special(f"<|{name}|>") or 0 for name in ("tool", "call", "end"))


class Wait(BaseTool):
    """Answers after a while, as a service elsewhere does."""

    name = "wait"
    description = "Waits."
    parameters = {"type": "object", "properties": {"seconds": {"type": "number"}}, "required": ["seconds"]}

    async def apply(self, seconds: float) -> Any:
        await asyncio.sleep(seconds)
        return "waited"


def policy(stream: Sequence[int], seed: int, version: int) -> list[int]:
    """A turn of the scripted engine: the next call, or the answer."""
    if stream.count(_TOOL) == CALLS:
        return [*b"done", _END]
    return [_CALL, *stream[1 : stream.index(_END)], _END]
