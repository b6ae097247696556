"""Chat formats write what the templates say, read back what models sample, and only ever extend a stream."""

import json
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.chats import TOKENIZERS
from support.tokenizing import BYTES, CHAT, as_hf
from tokenizers import Tokenizer as Rust

from models.chat import ParsedTurn, chat_format
from models.chat_gemma import GemmaFormat
from models.chat_llama import LlamaFormat
from models.chat_tags import TagFormat
from models.chatml import ChatMLFormat, default_system, split_thinking
from models.tokenizer import Tokenizer
from schemas.errors import RequestError
from schemas.messages import Message, ToolCall, ToolSpec

STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def tool(name: str, **parameters: dict) -> ToolSpec:
    return ToolSpec(name, f"Does {name}.", {"type": "object", "properties": parameters, "required": [*parameters]})


CALCULATOR = tool("calculator", expression=STRING)
SEARCH = tool("search", query=STRING, top=INTEGER)
WAIT = tool("wait", seconds=INTEGER)
CLOCK = ToolSpec("clock", "Tells the time.")
TOOL_SETS = [[CALCULATOR], [SEARCH], [WAIT], [CLOCK], [CALCULATOR, SEARCH, WAIT, CLOCK]]
CONTROLS = ["<|end|>", "<|call|>x", "<|im_end|>", "<|eot_id|>", "<|python_tag|>", "<end_of_turn>\n<start_of_turn>model"]
MARKS = ["</think>", "</tool_call>", "calculator:1", "search:x:y", "{}", '{"name": "x"}', ""]
# Text as tokenizers give it back: Qwen's compose characters (NFC, so no mark may join a tag's last character), Gemma's
# write a space as "▁".
LETTERS = st.characters(exclude_categories=["Cs", "Mn", "Mc", "Me"], exclude_characters="▁")
COMPOSED = st.text(LETTERS, max_size=20).map(lambda text: unicodedata.normalize("NFC", text))
TEXT = COMPOSED | st.sampled_from(CONTROLS + MARKS)


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


formats = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())


def readable(message: Message) -> bool:
    """Whether no text says what a call's tags or a call would say."""
    return "tool_call>" not in repr(message) and not message.content.startswith("{")


@formats
@given(case=calls())
def test_a_written_call_reads_back(tokenizer: Tokenizer, case: tuple[list[ToolSpec], Message]):
    tools, message = case
    assume(readable(message))
    written = chat_format(tokenizer, tools)
    assert written.parse(written.assistant(message)) == ParsedTurn(message)


@formats
@given(case=calls(), text=TEXT, thinking=TEXT)
def test_text_and_calls_read_back(tokenizer: Tokenizer, case: tuple[list[ToolSpec], Message], text: str, thinking: str):
    tools, message = case
    knows = "</think>" in tokenizer.chat_template
    kept = text if isinstance(chat_format(tokenizer, tools), TagFormat) else text.strip()
    both = replace(message, content=kept, thinking=thinking.strip() if knows else "")
    assume(readable(both) and "</think>" not in thinking and "<|python_tag|>" not in text)
    written = chat_format(tokenizer, tools)
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


@formats
@given(data=st.data())
def test_any_sampled_ids_are_read_without_raising(tokenizer: Tokenizer, data: st.DataObject):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    for tools in TOOL_SETS:
        turn = chat_format(tokenizer, tools).parse(ids)
        assert not (turn.error and turn.message.tool_calls)


@formats
@given(question=TEXT, result=TEXT)
def test_what_others_write_never_opens_or_ends_a_turn(tokenizer: Tokenizer, question: str, result: str):
    controls = {i for i in range(tokenizer.vocab_size) if tokenizer.special(tokenizer.decode([i])) == i}
    plain, said = ([Message("user", q), Message("tool", r)] for q, r in (("a", "b"), (question, result)))
    written = chat_format(tokenizer, [CALCULATOR])
    wanted = [i for i in written.prompt(plain, [CALCULATOR]) if i in controls]
    assert [i for i in written.prompt(said, [CALCULATOR]) if i in controls] == wanted


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


@formats
def test_an_argument_that_is_not_required_may_be_left_out(tokenizer: Tokenizer):
    finish = ToolSpec("finish", "", {"type": "object", "properties": {"answer": STRING}})
    for tools in ([finish], [finish, CALCULATOR]):
        for message in (calling("finish"), calling("finish", answer="1:2")):
            written = chat_format(tokenizer, tools)
            assert written.parse(written.assistant(message)) == ParsedTurn(message)


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


def sampled(name: str, text: str, *, tools: list[ToolSpec], stop: str) -> ParsedTurn:
    tokenizer = TOKENIZERS[name]
    tag, end = tokenizer.special("<|python_tag|>"), tokenizer.special(stop)
    parts = [tokenizer.encode(part) for part in text.split("<|python_tag|>")]
    ids = parts[0] + [i for part in parts[1:] for i in (tag, *part)]
    return chat_format(tokenizer, tools).parse([*ids, end])  # type: ignore[list-item]


@pytest.mark.parametrize("stop", ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"])
def test_sampled_llama_calls_are_read(stop: str):
    one = '{"name": "calculator", "parameters": {"expression": "1+1"}}'
    wanted = calling("calculator", expression="1+1")
    for text in (one, f"\n{one} ", f"<|python_tag|>{one}", one.replace("parameters", "arguments")):
        assert sampled("llama3_1", text, tools=[CALCULATOR], stop=stop) == ParsedTurn(wanted)
    both = sampled("llama3_1", f"{one}; {one}", tools=[CALCULATOR], stop=stop).message.tool_calls
    assert [call.id for call in both] == ["call_0", "call_1"]
    assert sampled("llama3_1", f"Well.<|python_tag|>{one}", tools=[CALCULATOR], stop=stop).message.content == "Well."
    assert sampled("llama3_1", one, tools=[], stop=stop) == ParsedTurn(Message("assistant", one))
    answer = '{"total": 2}'
    assert sampled("llama3_1", answer, tools=[CALCULATOR], stop=stop) == ParsedTurn(Message("assistant", answer))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"name": "calculator", "param', "not valid JSON"),
        ('{"name": "calculator", "parameters": {}} there', "not valid JSON"),
        ("<|python_tag|>search.call(query='x')", "not valid JSON"),
        ('{"name": 3}', 'an object with "name" and "parameters"'),
        ('<|python_tag|>{"a": 1}', 'an object with "name" and "parameters"'),
        ('{"name": "calculator", "parameters": [1]}', "parameters of a tool call must be a JSON object"),
    ],
)
def test_malformed_llama_calls_are_explained(text: str, sentence: str):
    turn = sampled("llama3_1", text, tools=[CALCULATOR], stop="<|eot_id|>")
    assert sentence in turn.error and not turn.message.tool_calls


def test_llama_is_told_of_tools_in_the_first_question_only():
    with pytest.raises(RequestError, match="first user message"):
        chat_format(TOKENIZERS["llama3_1"], [CALCULATOR]).prompt([Message("assistant", "Hi")], [CALCULATOR])


def test_a_system_text_without_a_question_reaches_gemma():
    written = chat_format(TOKENIZERS["gemma3"], [])
    assert isinstance(written, GemmaFormat)
    opening = "<bos><start_of_turn>user\nHelp.\n\n<end_of_turn>\n<start_of_turn>model\n"
    assert TOKENIZERS["gemma3"].decode(written.prompt([Message("system", "Help.")], [])) == opening


def test_thinking_is_no_part_of_what_is_said():
    turn = sampled("qwen3", "<think>\nHm.\n</think>\n\nTwo.", tools=[], stop="<|im_end|>")
    assert turn == ParsedTurn(Message("assistant", "Two.", thinking="Hm."))
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
    turn = sampled("qwen3", f"<think>\nHm.\n</think>\n\n{call}", tools=[CALCULATOR], stop="<|im_end|>")
    assert turn == ParsedTurn(replace(calling("calculator", expression="1+1"), thinking="Hm."))
    open_block = sampled("qwen3", f"<think>\nI may {call}", tools=[CALCULATOR], stop="<|im_end|>")
    assert open_block == ParsedTurn(Message("assistant", thinking=f"I may {call}"))
    assert sampled("qwen2_5", "<think>a</think>b", tools=[], stop="<|im_end|>").message.content == "<think>a</think>b"
    assert split_thinking("I <think> so") == ("", "I <think> so")


@pytest.mark.parametrize(
    ("template", "kind"), [("{{ '<|im_start|>' }}", ChatMLFormat), ("{{ '<|start_header_id|>' }}", LlamaFormat)]
)
def test_where_the_tokens_of_two_formats_are_there_the_template_decides(template: str, kind: type):
    files = dict(TOKENIZERS["llama3"].to_files())
    rust = Rust.from_str(files["tokenizer.json"].decode())
    rust.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    config = {"chat_template": template}
    both = as_hf({"tokenizer.json": rust.to_str().encode(), "tokenizer_config.json": json.dumps(config).encode()})
    assert isinstance(chat_format(both, []), kind)


def test_the_digest_follows_the_tools():
    assert chat_format(BYTES, [CALCULATOR]).digest != chat_format(BYTES, [SEARCH]).digest
    assert chat_format(BYTES, [CALCULATOR]).digest == chat_format(BYTES, [CALCULATOR]).digest


def test_a_tokenizer_without_chat_tokens_is_refused():
    class Plain:
        digest = ""

        def special(self, name: str) -> None:
            return None

    with pytest.raises(RequestError, match="control tokens of no chat format"):
        chat_format(Plain(), [])
