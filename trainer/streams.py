"""What a warm-up learns from as streams of tokens: what an episode would feed and sample, and which of it is trained.

Needs no JAX, so that `headrace validate` can look at every row before any process of a warm-up starts.
"""

from collections.abc import Iterator, Sequence

from models.chat import ChatFormat, chat_format
from models.tokenizer import Tokenizer
from schemas.data import Demonstration, Preference
from schemas.errors import RequestError
from schemas.messages import Message, ToolSpec

Example = tuple[list[int], list[bool]]
"""Tokens and, for each, whether it is trained."""
Pair = tuple[Example, Example]
"""The streams of the chosen and of the rejected side, each with the prompt before it."""


class Formats:
    """The chat formats of a tokenizer, each made once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._known = tokenizer, dict[str, ChatFormat]()

    def of(self, tools: Sequence[ToolSpec]) -> ChatFormat:
        """The format for a set of tools."""
        key = repr(tuple(tools))
        if key not in self._known:
            self._known[key] = chat_format(self._tokenizer, tools)
        return self._known[key]


def encode(demonstration: Demonstration, chat: ChatFormat) -> Example:
    """The conversation's stream: its prompt, then what follows from the first assistant message on."""
    messages = demonstration.messages
    first = next(i for i, m in enumerate(messages) if m.role == "assistant")
    return stream(messages[:first], messages[first:], demonstration.tools, chat, demonstration.place)


def stream(
    prompt: Sequence[Message], answer: Sequence[Message], tools: Sequence[ToolSpec], chat: ChatFormat, place: str
) -> Example:
    """A prompt (not trained), then assistant turns (trained) and what answers them (not trained).

    What follows the last assistant turn is left out. RequestError, with the place, where two assistant turns follow
    each other or the chat format can't write a turn.
    """
    try:
        return _stream(prompt, answer, tools, chat)
    except RequestError as error:
        raise RequestError(f"{place}: {error}") from error


def _stream(
    prompt: Sequence[Message], answer: Sequence[Message], tools: Sequence[ToolSpec], chat: ChatFormat
) -> Example:
    tokens = chat.prompt(prompt, tools)
    mask = [False] * len(tokens)
    for number, (answers, turn) in enumerate(_turns(answer)):
        if number and not answers:
            raise RequestError("two assistant messages follow each other: join them into one")
        fed = chat.continuation(answers) if number else []
        sampled = chat.assistant(turn)
        tokens += fed + sampled
        mask += [False] * len(fed) + [True] * len(sampled)
    return tokens, mask


def _turns(messages: Sequence[Message]) -> Iterator[tuple[list[Message], Message]]:
    """Each assistant message with the messages between it and the one before."""
    between: list[Message] = []
    for message in messages:
        if message.role == "assistant":
            yield between, message
            between = []
        else:
            between.append(message)


def encode_all(demonstrations: Sequence[Demonstration], tokenizer: Tokenizer, length: int) -> list[Example]:
    """Every demonstration's stream. RequestError names the first that is longer than `length` tokens."""
    formats = Formats(tokenizer)
    return [fitting(d, formats, length) for d in demonstrations]


def fitting(demonstration: Demonstration, formats: Formats, length: int) -> Example:
    """A demonstration's stream; RequestError where it is longer than `length` tokens."""
    tokens, mask = encode(demonstration, formats.of(demonstration.tools))
    if len(tokens) > length:
        raise RequestError(
            f"{demonstration.place}: the demonstration has {len(tokens)} tokens, more than max_length = {length}: "
            f"raise it or shorten the demonstration"
        )
    return tokens, mask


def encode_pairs(preferences: Sequence[Preference], tokenizer: Tokenizer, length: int) -> list[Pair]:
    """Every pair's streams. RequestError names the first that is longer than `length` tokens or has equal sides."""
    formats = Formats(tokenizer)
    return [fitting_pair(p, formats, length) for p in preferences]


def fitting_pair(pair: Preference, formats: Formats, length: int) -> Pair:
    """A pair's streams; RequestError where one is longer than `length` tokens or they are equal."""
    chat = formats.of(pair.tools)
    chosen, rejected = (stream(pair.prompt, s, pair.tools, chat, pair.place) for s in (pair.chosen, pair.rejected))
    for name, (tokens, _) in (("chosen", chosen), ("rejected", rejected)):
        if len(tokens) > length:
            raise RequestError(
                f"{pair.place}: prompt and `{name}` have {len(tokens)} tokens, more than max_length = {length}: "
                f"raise it or shorten the pair"
            )
    if chosen == rejected:
        raise RequestError(f"{pair.place}: `chosen` and `rejected` are the same to the model: leave the pair out")
    return chosen, rejected
