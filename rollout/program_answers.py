"""What the endpoint answers, in OpenAI's chat format: one object, or the chunks of a stream that add up to it.

A stream's chunks come when the turn is complete: what is recorded is then what was told.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from schemas.messages import Message, ToolCall

Told = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class Answer:
    """A sampled turn."""

    id: str
    model: str
    message: Message
    finish: Told
    prompt_tokens: int
    completion_tokens: int
    tokens: tuple[tuple[str, float], ...]
    """Text and log-prob of each sampled token."""


def whole(answer: Answer, *, logprobs: bool) -> dict[str, Any]:
    """The answer as one `chat.completion` object."""
    told: dict[str, Any] = {"role": "assistant", "content": _content(answer.message)}
    if answer.message.thinking:
        told["reasoning_content"] = answer.message.thinking
    if answer.message.tool_calls:
        told["tool_calls"] = _calls(answer.message.tool_calls)
    choice = {"index": 0, "message": told, "finish_reason": answer.finish, "logprobs": _logprobs(answer, logprobs)}
    return {**_head(answer, "chat.completion"), "choices": [choice], "usage": _usage(answer)}


def chunks(answer: Answer, *, logprobs: bool, usage: bool) -> Iterator[dict[str, Any]]:
    """The answer as `chat.completion.chunk` objects."""
    message = answer.message
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": message.thinking}] if message.thinking else []
    deltas += [{"content": message.content}] if message.content else []
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(_calls(message.tool_calls))]
    for delta in deltas:
        yield _chunk(answer, {"delta": delta, "finish_reason": None, "logprobs": None})
    yield _chunk(answer, {"delta": {}, "finish_reason": answer.finish, "logprobs": _logprobs(answer, logprobs)})
    if usage:
        yield {**_head(answer, "chat.completion.chunk"), "choices": [], "usage": _usage(answer)}


def models(model: str) -> dict[str, Any]:
    """What `/v1/models` lists: the policy."""
    return {"object": "list", "data": [one_model(model)]}


def one_model(model: str) -> dict[str, Any]:
    """What `/v1/models/NAME` says."""
    return {"id": model, "object": "model", "created": 0, "owned_by": "headrace"}


def error(status: int, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """OpenAI's shape of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": answer.id, "object": kind, "created": int(time.time()), "model": answer.model}


def _chunk(answer: Answer, choice: dict[str, Any]) -> dict[str, Any]:
    return {**_head(answer, "chat.completion.chunk"), "choices": [{"index": 0, **choice}]}


def _content(message: Message) -> str | None:
    """None beside calls and nothing else, as OpenAI has it."""
    return message.content or (None if message.tool_calls else "")


def _calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    return [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
        for c in calls
    ]


def _usage(answer: Answer) -> dict[str, int]:
    total = answer.prompt_tokens + answer.completion_tokens
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": total,
    }


def _logprobs(answer: Answer, wanted: bool) -> dict[str, Any] | None:
    if not wanted:
        return None
    content = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in answer.tokens
    ]
    return {"content": content, "refusal": None}
