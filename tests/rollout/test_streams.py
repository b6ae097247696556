"""In every chat format, what is trained is byte for byte what was fed and sampled, one piece after another."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chats import TOKENIZERS
from support.rollouts import config

from models.chat import ChatFormat, ParsedTurn, chat_format
from models.tokenizer import Tokenizer
from rollout.agents import Action
from rollout.cast import Cast, load_cast
from rollout.collect import TrajectoryCollectEngine
from rollout.engine import Completion, Request
from rollout.environments import StepResult, ToolEnvironment
from rollout.episode import Job
from rollout.scripted import ScriptedEngine
from schemas.data import Task
from schemas.messages import Message, ToolCall, ToolSpec
from schemas.trajectory import ShardMetadata, Trajectory
from storage.shards import decode_shard, encode_shard
from trainer.batch import lay_out
from trainer.packing import padded

LENGTH, TURNS = 4096, 5
MALFORMED = (
    "<tool_call>{", "<tool_call>\n[]\n</tool_call>", '{"name": "calculator", "parameters": {"expre', '{"name": 3}',
    "<think>\nNever closed <tool_call>", "{}", "",
)  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SAID = TEXT | st.sampled_from(["<|im_end|>", "<|eot_id|>", "<end_of_turn>\n<start_of_turn>model\n", "<|end|>"])


@dataclass
class Recorder:
    """Both ends of an episode: what the chat format wrote and the engine sampled, in order."""

    chat: ChatFormat
    turns: list[tuple[list[int], str]]
    pieces: list[tuple[list[int], bool]] = field(default_factory=list)
    """Ids, and whether they were sampled."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self.chat.stop_ids

    @property
    def ids(self) -> list[int]:
        return [i for piece, _ in self.pieces for i in piece]

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return self._fed(self.chat.prompt(messages, tools))

    def continuation(self, messages: Sequence[Message]) -> list[int]:
        if self.ids[-1] not in self.stop_ids:  # a stop string ended the turn: it is closed for the model
            self._fed([self.stop_ids[0]])
        return self._fed(self.chat.continuation(messages))

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        return self.chat.parse(ids)

    def _fed(self, ids: list[int]) -> list[int]:
        self.pieces.append((list(ids), False))
        return ids

    def sample(self, request: Request) -> Completion:
        assert list(request.token_ids) == self.ids, "a turn must see all that came before, as it was"
        ids, finish = self.turns.pop(0)
        self.pieces.append((ids, True))
        logprobs = tuple(-1.0 - i / 8 for i in range(len(ids)))
        return Completion(tuple(ids), logprobs, (0,) * len(ids), finish, 0.0, 0.0)  # type: ignore[arg-type]


class Engine(ScriptedEngine):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__(lambda *_: [], version=0)
        self.recorder = recorder

    async def generate(self, request: Request) -> Completion:
        return self.recorder.sample(request)


def world(answers: list[list[Message]]) -> type[ToolEnvironment]:
    """Runs tools and answers malformed calls; a plain turn gets the next of these answers, until there is none."""

    class World(ToolEnvironment):
        async def step(self, action: Action) -> StepResult:
            done = await super().step(action)
            return StepResult(answers.pop(0)) if done.done and answers else done

    return World


@st.composite
def sampled(draw: st.DrawFn, tokenizer: Tokenizer, chat: ChatFormat) -> tuple[list[int], str]:
    """A turn: any ids, a written call, or text that looks like one; ended by a stop token, or cut off."""
    kind = draw(st.sampled_from(["any", "call", "malformed", "text"]))
    if kind == "any":
        ids = draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=12))
    elif kind == "call":
        call = ToolCall("calculator", {"expression": draw(st.sampled_from(["1+1", "2*", "x", "7*6 "]))})
        ids = chat.assistant(Message("assistant", draw(TEXT), (call,) * draw(st.integers(1, 2))))
    else:
        ids = tokenizer.encode(draw(st.sampled_from(MALFORMED) if kind == "malformed" else SAID))
    ids = [i for i in ids if i not in chat.stop_ids]
    if draw(st.booleans()) and ids:
        return ids[: draw(st.integers(1, len(ids)))], draw(st.sampled_from(["length", "context", "stop"]))
    return [*ids, draw(st.sampled_from(chat.stop_ids))], "stop"


def play(recorder: Recorder, answers: list[list[Message]], question: str) -> Trajectory:
    run = config(
        environment={"max_turns": TURNS, "system_prompt": "Compute."},
        rollout={"max_length": LENGTH, "max_tokens_per_turn": LENGTH},
    )
    built = load_cast(run.environment, ".")
    cast = Cast(built.config, built.agent, world(answers), built.tools, built.score)
    engine = Engine(recorder)
    made = TrajectoryCollectEngine(engine, recorder, cast, run, run="r", seed=7, worker="w", temperature=1.0)  # type: ignore[arg-type]
    return asyncio.run(made.collect(Job(0, 0, 0, Task("t", question, "42"))))


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
@settings(max_examples=25, deadline=None)
@given(data=st.data(), question=SAID)
def test_trained_ids_are_what_was_fed_and_sampled(tokenizer: Tokenizer, data: st.DataObject, question: str) -> None:
    chat = chat_format(tokenizer, load_cast(config().environment, ".").tool_specs)
    recorder = Recorder(chat, [data.draw(sampled(tokenizer, chat)) for _ in range(TURNS)])
    said = st.builds(Message, st.sampled_from(["user", "tool"]), SAID)
    answers = data.draw(st.lists(st.lists(said, min_size=1, max_size=3), max_size=TURNS))
    row = play(recorder, answers, question)
    assert not row.failed, row.detail
    stored = decode_shard(encode_shard([row], ShardMetadata("t", "c", "v", "scripted")))[1][0]
    (part,) = lay_out([stored], [1.0], padded(1, LENGTH))
    batch = part.batch
    size, pieces = len(recorder.ids), recorder.pieces
    assert batch.tokens[0, :size].tobytes() == np.asarray(recorder.ids, np.int32).tobytes()
    assert batch.valid[0].sum() == size and stored.segment_starts == (0,)
    assert batch.mask[0, :size].tolist() == [float(was) for ids, was in pieces for _ in ids]
    assert [list(stored.tokens[t.start : t.end]) for t in stored.turns] == [ids for ids, was in pieces if was]


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "gemma3"])
def test_a_malformed_call_is_answered_and_the_stream_goes_on(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    chat = chat_format(tokenizer, load_cast(config().environment, ".").tool_specs)
    wrong = '{"name": "calculator", "parameters": [' if name == "llama3_1" else "<tool_call>\n{oops\n</tool_call>"
    stop = chat.stop_ids[0]
    turns = [([*tokenizer.encode(wrong), stop], "stop"), ([*tokenizer.encode("42"), stop], "stop")]
    row = play(Recorder(chat, turns), [], "7*6?")
    said = json.loads(row.messages)
    assert [m["role"] for m in said] == ["system", "user", "assistant", "tool", "assistant"]
    assert said[3]["content"] == "Error: A tool call is not valid JSON."
    assert (row.status, row.reward) == ("succeeded", 1.0)
