"""Chat formats write what the templates say, read back what models sample, and only ever extend a stream."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tokenizing import BYTES, CHAT

from models.chat import ParsedTurn, chat_format
from models.chat_tags import TagFormat
from models.chatml import ChatMLFormat, default_system
from schemas.errors import RequestError
from schemas.messages import Message, ToolCall, ToolSpec

STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def tool(name: str, **parameters: dict) -> ToolSpec:
    return ToolSpec(name, f"Does {name}.", {"type": "object", "properties": parameters})


CALCULATOR = tool("calculator", expression=STRING)
SEARCH = tool("search", query=STRING, top=INTEGER)
WAIT = tool("wait", seconds=INTEGER)
CLOCK = ToolSpec("clock", "Tells the time.")
TOOL_SETS = [[CALCULATOR], [SEARCH], [WAIT], [CLOCK], [CALCULATOR, SEARCH, WAIT, CLOCK]]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["<|end|>", "<|call|>x", "<|im_end|>", "calculator:1", "search:x:y", "{}", ""]
)


def calling(name: str, **arguments: object) -> Message:
    return Message("assistant", tool_calls=(ToolCall(name, arguments, id="call_0"),))


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[ToolSpec], Message]:
    """A tool set and an assistant message that calls some of its tools."""
    tools = draw(st.sampled_from(TOOL_SETS))
    made = []
    for number in range(draw(st.integers(1, 3))):
        values = {"expression": TEXT.filter(bool), "query": TEXT, "top": st.integers(), "seconds": st.integers()}
        used = draw(st.sampled_from(tools))
        arguments = {name: draw(values[name]) for name in used.parameters.get("properties", {})}
        made.append(ToolCall(used.name, arguments, id=f"call_{number}"))
    return tools, Message("assistant", tool_calls=tuple(made))


@given(calls())
def test_a_written_call_reads_back(case: tuple[list[ToolSpec], Message]):
    tools, message = case
    written = chat_format(BYTES, tools)
    assert written.parse(written.assistant(message)) == ParsedTurn(message)


@given(calls(), TEXT)
def test_text_and_calls_read_back(case: tuple[list[ToolSpec], Message], text: str):
    tools, message = case
    written = chat_format(BYTES, tools)
    both = replace(message, content=text)
    assert written.parse(written.assistant(both)) == ParsedTurn(both)


def test_a_conversation_in_tags():
    written = chat_format(BYTES, [CALCULATOR])
    assert isinstance(written, TagFormat)
    stream = written.prompt([Message("system", "s"), Message("user", "47*38=?")], [CALCULATOR])
    stream += written.assistant(calling("calculator", expression="47*38"))
    stream += written.continuation([Message("tool", "1786", name="calculator")])
    stream += written.assistant(Message("assistant", "1786"))
    assert BYTES.decode(stream) == (
        "<|system|>s<|end|><|user|>47*38=?<|end|><|assistant|><|call|>47*38<|end|>"
        "<|tool|>1786<|end|><|assistant|>1786<|end|>"
    )
    assert written.stop_ids == (262,) and stream[-1] == 262


def test_a_prompt_with_past_turns_equals_the_stream_that_made_them():
    for tokenizer in (BYTES, CHAT):
        written = chat_format(tokenizer, [CALCULATOR])
        asked, called, result = Message("user", "1+1"), calling("calculator", expression="1+1"), Message("tool", "2")
        stream = written.prompt([asked], [CALCULATOR]) + written.assistant(called) + written.continuation([result])
        assert written.prompt([asked, called, result], [CALCULATOR]) == stream


@given(st.lists(st.integers(0, 262), max_size=30))
def test_any_sampled_ids_are_read_without_raising(ids: list[int]):
    for tools in TOOL_SETS:
        turn = chat_format(BYTES, tools).parse(ids)
        assert not (turn.error and turn.message.tool_calls)


@given(st.lists(st.integers(0, CHAT.vocab_size + 3), max_size=30))
def test_any_sampled_ids_are_read_without_raising_in_chatml(ids: list[int]):
    turn = chat_format(CHAT, TOOL_SETS[4]).parse(ids)
    assert not (turn.error and turn.message.tool_calls)


@given(TEXT, TEXT)
def test_what_others_write_never_opens_or_ends_a_turn(question: str, result: str):
    messages = [Message("user", question), Message("tool", result)]
    for tokenizer, counts in ((BYTES, {262: 2, 259: 1, 261: 0}), (CHAT, {CHAT.special("<|im_start|>"): 4})):
        ids = chat_format(tokenizer, [CALCULATOR]).prompt(messages, [CALCULATOR])
        assert all(ids.count(control) == count for control, count in counts.items())


@pytest.mark.parametrize(
    ("tools", "text", "sentence"),
    [
        ([CALCULATOR], "", "no argument"),
        ([SEARCH], "words", "not valid JSON"),
        ([SEARCH], "[1]", "must be a JSON object"),
        ([CALCULATOR, SEARCH], "1+1", "must name its tool"),
        ([CALCULATOR, SEARCH], "clock:", "calculator, search"),
        ([], "x", "none"),
    ],
)
def test_malformed_calls_are_explained(tools: list[ToolSpec], text: str, sentence: str):
    turn = chat_format(BYTES, tools).parse([261, *BYTES.encode(text), 262])
    assert sentence in turn.error and turn.message == Message("assistant")


def test_a_call_that_was_cut_off_is_malformed():
    turn = chat_format(BYTES, [CALCULATOR]).parse([261, *BYTES.encode("12")])
    assert "cut off" in turn.error


def test_control_tokens_inside_a_call_are_malformed():
    turn = chat_format(BYTES, [CALCULATOR]).parse([261, 49, 260, 49, 262])
    assert "plain text" in turn.error


def test_a_conversation_in_chatml():
    written = chat_format(CHAT, [])
    assert isinstance(written, ChatMLFormat)
    stream = written.prompt([Message("user", "Hi")], [])
    stream += written.assistant(Message("assistant", "Hello"))
    stream += written.continuation([Message("user", "Bye")])
    assert CHAT.decode(stream) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_in_chatml():
    written = chat_format(CHAT, [CALCULATOR])
    text = CHAT.decode(written.prompt([Message("system", "Help."), Message("user", "1+1")], [CALCULATOR]))
    assert text.startswith("<|im_start|>system\nHelp.\n\n# Tools\n\n")
    signature = text.split("<tools>\n")[1].split("\n</tools>")[0]
    assert json.loads(signature)["function"]["parameters"] == CALCULATOR.parameters
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
    assert CHAT.decode(written.assistant(calling("calculator", expression="1+1"))) == f"{call}<|im_end|>"
    results = CHAT.decode(written.continuation([Message("tool", "2"), Message("tool", "3")]))
    assert results == (
        "\n<|im_start|>user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_sampled_chatml_calls_are_read():
    written = chat_format(CHAT, [CALCULATOR])
    said = 'Let me see.\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
    turn = written.parse([*CHAT.encode(said), CHAT.special("<|im_end|>")])
    assert turn == ParsedTurn(replace(calling("calculator", expression="1+1"), content="Let me see."))
    assert written.parse([*CHAT.encode("Two."), written.stop_ids[1]]) == ParsedTurn(Message("assistant", "Two."))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("<tool_call>{", "not closed"),
        ("<tool_call>{</tool_call>", "not valid JSON"),
        ("<tool_call>[]</tool_call>", "must be an object"),
        ('<tool_call>{"name": "calculator", "arguments": 3}</tool_call>', "JSON object"),
    ],
)
def test_malformed_chatml_calls_are_explained(body: str, sentence: str):
    written = chat_format(CHAT, [CALCULATOR])
    turn = written.parse([*CHAT.encode(body), CHAT.special("<|im_end|>")])
    assert sentence in turn.error and not turn.message.tool_calls


def test_default_system_messages_are_found_in_templates():
    assert default_system("{{ '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}") == "You are Qwen."
    assert default_system("{{ '<|im_start|>system\\n' + content + '<|im_end|>' }}") == ""


def test_the_digest_follows_the_tools():
    assert chat_format(BYTES, [CALCULATOR]).digest != chat_format(BYTES, [SEARCH]).digest
    assert chat_format(BYTES, [CALCULATOR]).digest == chat_format(BYTES, [CALCULATOR]).digest


def test_a_tokenizer_without_chat_tokens_is_refused():
    class Plain:
        digest = ""

        def special(self, name: str) -> None:
            return None

    with pytest.raises(RequestError, match="neither ChatML"):
        chat_format(Plain(), [])
