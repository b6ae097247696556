"""Whether every row that the warm-ups learn from can be learned from, and what the loss would see of it.

Nothing is trained: each row is written as its stream of tokens, measured, and read back as a sampled turn would be, so
that a broken or too long one costs seconds and not a stage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from models.chat import ChatFormat
from models.spans import Span, spans
from models.tokenizer import Tokenizer
from rollout.cast import Cast
from schemas.data import Demonstration, Preference, Task
from schemas.errors import RequestError
from schemas.messages import Message, ToolSpec
from schemas.selection import Selection
from schemas.warm_ups import SFT, WarmUp
from storage.rows import read_demonstrations, read_preferences
from tasks.fit import read_tokenizer
from tasks.request import Request
from trainer.own_log import taken_examples, taken_pairs
from trainer.streams import Example, Formats, fitting, fitting_pair


@dataclass(frozen=True)
class Taught:
    """What a warm-up learns from, in tokens; of pairs both sides count."""

    setting: str
    file: str
    what: str
    """`demonstrations` or `pairs`."""
    rows: int
    max_length: int
    longest: int
    """Tokens of the longest stream."""
    tokens: int
    trained: int
    """So many of the tokens are the assistant's."""
    unknown_tools: tuple[str, ...]
    """Tools that its turns call and the environment does not offer."""
    opened_otherwise: int
    """Rows that do not open as an episode with the same question would: by the system prompt, or the tools that the
    model is told of. What they teach is then asked for in other words."""
    example: list[Span]
    """The first stream."""


def check_lessons(request: Request) -> None:
    """RequestError names the file and line of the first row of a warm-up that is too long or that the chat format can't
    write: found before the first stage starts, not by the second."""
    tokenizer = read_tokenizer(request)
    for stage in request.config.warm_up:
        for _ in _rows(request, stage, tokenizer, Formats(tokenizer)):
            pass


def measure_lessons(request: Request, cast: Cast) -> list[Taught]:
    """Every warm-up's data, beside the players of the episodes that it prepares for.

    RequestError as `check_lessons`, and for a row whose turns would be read otherwise than they are meant.
    """
    tokenizer = read_tokenizer(request)
    return [_taught(request, stage, tokenizer, cast) for stage in request.config.warm_up]


def _taught(request: Request, stage: WarmUp, tokenizer: Tokenizer, cast: Cast) -> Taught:
    setting, what = f"warm_up.{stage.name}", "demonstrations" if isinstance(stage, SFT) else "pairs"
    formats, offered, called = Formats(tokenizer), cast.tool_specs, set[str]()
    rows = longest = tokens = trained = otherwise = 0
    example: list[Span] = []
    for row, streams in _rows(request, stage, tokenizer, formats):
        rows += 1
        if row is not None:
            called |= _read_back(row, formats, offered)
            otherwise += _opens_otherwise(row, streams[0], cast, offered, formats.of(offered))
        example = example or spans(*streams[0], tokenizer, formats.of(offered))
        for ids, mask in streams:
            longest, tokens, trained = max(longest, len(ids)), tokens + len(ids), trained + sum(mask)
    unknown = tuple(sorted(called - {tool.name for tool in offered}))
    where = request.data[setting].where
    return Taught(setting, where, what, rows, stage.max_length, longest, tokens, trained, unknown, otherwise, example)


def _rows(
    request: Request, stage: WarmUp, tokenizer: Tokenizer, formats: Formats
) -> Iterator[tuple[Demonstration | Preference | None, Sequence[Example]]]:
    """Each row with its streams, one or two. A run's log has streams alone: they were sampled."""
    file = request.data[f"warm_up.{stage.name}"]
    if not isinstance(stage.data, str):
        selection = Selection.from_bytes(file.data, file.where)
        if isinstance(stage, SFT):
            yield from ((None, [one]) for one in taken_examples(request.store, selection, tokenizer))
        else:
            yield from ((None, both) for both in taken_pairs(request.store, selection, tokenizer))
    elif isinstance(stage, SFT):
        for shown in read_demonstrations(file.data, file.suffix, file.where):
            yield shown, [fitting(shown, formats, stage.max_length)]
    else:
        for pair in read_preferences(file.data, file.suffix, file.where):
            yield pair, fitting_pair(pair, formats, stage.max_length)


def _read_back(row: Demonstration | Preference, formats: Formats, offered: Sequence[ToolSpec]) -> set[str]:
    """The tools that the assistant's turns call; RequestError where the format reads other calls in what it wrote."""
    messages = row.messages if isinstance(row, Demonstration) else row.chosen
    written, read = formats.of(row.tools), formats.of(row.tools or offered)
    found: set[str] = set()
    for message in messages:
        if message.role != "assistant":
            continue
        turn = read.parse(written.assistant(message))
        meant, said = ([call.name for call in m.tool_calls] for m in (message, turn.message))
        if turn.error or meant != said:
            cause = turn.error or f"{_calls(said)} in the place of {_calls(meant)}"
            raise RequestError(
                f"{row.place}: a model that says the assistant's turn `{_short(message)}` would be read otherwise "
                f"({cause}): correct its `tool_calls` and `tools`, or its text"
            )
        found.update(meant)
    return found


def _opens_otherwise(
    row: Demonstration | Preference, example: Example, cast: Cast, offered: Sequence[ToolSpec], chat: ChatFormat
) -> bool:
    """Whether an episode would ask the row's question in other tokens; false where code of the user's own asks it."""
    messages = row.messages if isinstance(row, Demonstration) else row.prompt
    given = [m for m in takewhile(lambda m: m.role != "assistant", messages) if m.role != "system"]
    opening = cast.opening(Task("", given[0].content, "")) if [m.role for m in given] == ["user"] else None
    tokens, mask = example
    return opening is not None and tokens[: mask.index(True)] != chat.prompt(opening, offered)


def _calls(names: Sequence[str]) -> str:
    return "calls of " + ", ".join(f"`{name}`" for name in names) if names else "no calls"


def _short(message: Message) -> str:
    text = " ".join([message.content, *(call.name for call in message.tool_calls)]).strip()
    return text if len(text) <= 40 else f"{text[:40]}…"
