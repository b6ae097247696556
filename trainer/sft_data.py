"""Demonstrations as token streams: exactly what an episode would feed and sample, with the assistant's turns marked."""

from collections.abc import Iterator, Sequence

import numpy as np

from models.chat import ChatFormat, chat_format
from models.tokenizer import Tokenizer
from schemas import seeds
from schemas.data import Demonstration
from schemas.errors import RequestError
from schemas.messages import Message, ToolSpec
from trainer.batch import Batch, empty, place_rows
from trainer.packing import Layout, micro_batches

Example = tuple[list[int], list[bool]]
"""Tokens and, for each, whether it is trained."""


def encode(demonstration: Demonstration, chat: ChatFormat) -> Example:
    """The conversation's stream: its prompt, then what follows from the first assistant message on."""
    messages = demonstration.messages
    first = next(i for i, m in enumerate(messages) if m.role == "assistant")
    return stream(messages[:first], messages[first:], demonstration.tools, chat, demonstration.place)


def stream(
    prompt: Sequence[Message], answer: Sequence[Message], tools: Sequence[ToolSpec], chat: ChatFormat, place: str
) -> Example:
    """A prompt (not trained), then assistant turns (trained) and what answers them (not trained).

    What follows the last assistant turn is left out. RequestError where two assistant turns follow each other.
    """
    tokens = chat.prompt(prompt, tools)
    mask = [False] * len(tokens)
    for number, (answers, turn) in enumerate(_turns(answer)):
        if number and not answers:
            raise RequestError(f"{place}: two assistant messages follow each other: join them into one")
        fed = chat.continuation(answers) if number else []
        sampled = chat.assistant(turn)
        tokens += fed + sampled
        mask += [False] * len(fed) + [True] * len(sampled)
    return tokens, mask


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


def encode_all(demonstrations: Sequence[Demonstration], tokenizer: Tokenizer, length: int) -> list[Example]:
    """Every demonstration's stream. RequestError names the first that is longer than `length` tokens."""
    formats = Formats(tokenizer)
    return [_checked(d, formats.of(d.tools), length) for d in demonstrations]


def _checked(demonstration: Demonstration, chat: ChatFormat, length: int) -> Example:
    tokens, mask = encode(demonstration, chat)
    if len(tokens) > length:
        raise RequestError(
            f"{demonstration.place}: the demonstration has {len(tokens)} tokens, more than max_length = {length}: "
            f"raise it or shorten the demonstration"
        )
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


def order(count: int, batch: int, steps: int, seed: int, shuffle: bool) -> np.ndarray:
    """[steps, batch] which examples each step takes: epoch after epoch, permuted by the seed or as they stand."""
    epochs = -(-steps * batch // count)
    rng = np.random.default_rng(seeds.derive("sft", seed))
    one = [rng.permutation(count) if shuffle else np.arange(count) for _ in range(epochs)]
    return np.concatenate(one)[: steps * batch].reshape(steps, batch)


def collate(examples: Sequence[Example], layout: Layout) -> list[Batch[np.ndarray]]:
    """Examples in micro-batches; only what the decoder sees and `mask` matter to SFT."""
    return [_part(rows, examples, layout) for rows in micro_batches([len(t) for t, _ in examples], layout)]


def _part(rows: Sequence[Sequence[int]], examples: Sequence[Example], layout: Layout) -> Batch[np.ndarray]:
    out = empty(layout)
    place_rows(out, [[examples[i][0] for i in row] for row in rows])
    for line, i in enumerate(i for row in rows for i in row):
        mask = examples[i][1]
        out.mask[line, : len(mask)], out.weights[line] = mask, 1.0
    return out
