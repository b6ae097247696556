"""What a program asks of the endpoint, read from OpenAI's chat format. What can't be served is refused by name.

Nothing that would change the answer is dropped in silence: a field is honoured, has a value that means nothing, or is
refused. `seed` is the exception: a program that fixes it would make the samples of a group alike.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from rollout.episode import plain
from schemas.messages import Message, ToolCall, ToolSpec

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "tool_choice": (None, "auto", "none"),
    "response_format": (None, {"type": "text"}),
    "parallel_tool_calls": (None, True),
    "logit_bias": (None, {}),
    "top_logprobs": (None, 0),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
}
"""Fields that may be there with a value that asks for nothing special."""
NO_EFFECT = ("metadata", "prompt_cache_key", "safety_identifier", "seed", "service_tier", "store", "user")
"""Fields that don't say what to answer."""


class Refused(Exception):
    """A request that is not answered; `status` is HTTP's, `code` and `param` are OpenAI's words for why."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


class _Part(BaseModel):
    type: Literal["text"]
    text: str


class _Called(BaseModel):
    name: str
    arguments: str = "{}"


class _Call(BaseModel):
    id: str = ""
    type: Literal["function"] = "function"
    function: _Called


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str = ""


class _Schema(BaseModel):
    """What the formats look at in a schema of arguments; the rest is the program's."""

    properties: dict[str, dict[str, Any]] = {}
    required: list[str] = []


def _schema(value: dict[str, Any]) -> dict[str, Any]:
    _Schema.model_validate(value)
    return value


class _Function(BaseModel):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_schema)] = {}


class _Tool(BaseModel):
    type: Literal["function"]
    function: _Function


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    tools: list[_Tool] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[str, Field(min_length=1)] | list[Annotated[str, Field(min_length=1)]] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None


@dataclass(frozen=True)
class Asked:
    """One request."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    calls: bool
    """Whether calls may be answered as calls; without tools, or with `tool_choice` `none`, they are text."""
    sampling: dict[str, Any]
    """What it says of sampling: `temperature`, `top_p`, `max_tokens`, `stop` (a list), `seed`, as far as it does."""
    stream: bool
    usage: bool
    """Whether a stream ends with a chunk that counts tokens."""
    logprobs: bool


def read_request(body: object) -> Asked:
    """The request in a JSON body; Refused for what can't be served."""
    if not isinstance(body, dict):
        raise Refused(400, "invalid_value", "the body must be a JSON object")
    _check_supported(body)
    rest = {k: v for k, v in body.items() if k not in NEUTRAL and k not in NO_EFFECT}
    try:
        read = _Body.model_validate(rest)
    except ValidationError as error:
        raise _invalid(error) from None
    messages = tuple(_message(m) for m in read.messages)
    if messages[-1].role == "assistant":
        raise Refused(400, "invalid_value", "the last message is the assistant's: nothing asks for another", "messages")
    offered = [tool.function for tool in read.tools or ()]
    tools = tuple(ToolSpec(f.name, f.description or "", f.parameters) for f in offered)
    return Asked(
        model=read.model,
        messages=messages,
        tools=tools,
        calls=bool(tools) and body.get("tool_choice") != "none",
        sampling=_sampling(read, body),
        stream=bool(read.stream),
        usage=bool(read.stream_options and read.stream_options.include_usage),
        logprobs=bool(read.logprobs),
    )


def _check_supported(body: dict[str, Any]) -> None:
    known = {*_Body.model_fields, *NEUTRAL, *NO_EFFECT}
    for name, value in body.items():
        if name not in known:
            raise Refused(400, "unsupported_parameter", f"`{plain(name)[:80]}` is not supported", name)
        if name in NEUTRAL and value not in NEUTRAL[name]:
            fitting = " or ".join(json.dumps(v) for v in NEUTRAL[name] if v is not None)
            raise Refused(400, "unsupported_parameter", f"`{name}` must be {fitting}, or be left out", name)


def _invalid(error: ValidationError) -> Refused:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return Refused(400, "invalid_value", f"`{plain(where)}`: {first['msg']}", str(first["loc"][0]))


def _sampling(read: _Body, body: dict[str, Any]) -> dict[str, Any]:
    stop = [read.stop] if isinstance(read.stop, str) else read.stop
    limits = [n for n in (read.max_tokens, read.max_completion_tokens) if n is not None]
    seed = body.get("seed") if isinstance(body.get("seed"), int) else None
    said = {
        "temperature": read.temperature,
        "top_p": read.top_p,
        "max_tokens": min(limits, default=None),
        "stop": stop or None,
        "seed": seed,
    }
    return {name: value for name, value in said.items() if value is not None}


def _message(message: _Message) -> Message:
    role = "system" if message.role == "developer" else message.role
    content = message.content or ""
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    calls = tuple(_call(call) for call in message.tool_calls or ()) if role == "assistant" else ()
    return Message(role, plain(text), calls, tool_call_id=plain(message.tool_call_id))


def _call(call: _Call) -> ToolCall:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        name = plain(call.function.name)
        raise Refused(400, "invalid_value", f"the arguments of a call of `{name}` are not a JSON object", "messages")
    return ToolCall(plain(call.function.name), arguments, plain(call.id))
