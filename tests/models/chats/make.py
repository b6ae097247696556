"""Make a small tokenizer with the control tokens of each family, and the ids that transformers gives by its template.

    python tests/models/chats/make.py

Needs transformers and trl, which brings the families' chat templates (Apache-2.0), in an environment of their own;
transformers 5.24.0 and trl 1.16.0 made what is here. Vocabularies are a few hundred entries learnt from the
conversations, but text is split as by the family's own tokenizer. A template that refuses a conversation gives null.

Gemma's templates know no tools: they get the conversation's `text`, which is what our format should say, by hand.
"""

import json
from pathlib import Path
from typing import Any

import trl
from jinja2 import TemplateError
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
CONVERSATIONS = json.loads((HERE / "conversations.json").read_text())
MERGES = 200
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
LLAMA = [
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
    "<|python_tag|>",
]  # fmt: skip
GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' "
    "+ message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DATE = {"date_string": "26 Jul 2024"}


def corpus() -> list[str]:
    """What vocabularies are learnt from: whatever the conversations say."""
    return [json.dumps(part, ensure_ascii=False) for part in CONVERSATIONS]


def byte_level(split: pre_tokenizers.PreTokenizer, controls: list[str], tags: list[str]) -> Tokenizer:
    """Byte-level BPE as Qwen's, Llama's and SmolLM2's, but small."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(corpus(), BpeTrainer(vocab_size=256 + MERGES, initial_alphabet=alphabet))
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in controls])
    made.add_tokens([AddedToken(name, special=False, normalized=False) for name in tags])
    return made


def words(digits: str, controls: list[str], tags: list[str]) -> Tokenizer:
    return byte_level(pre_tokenizers.Split(Regex(WORDS % digits), "isolated"), controls, tags)


def pieces(controls: list[str]) -> Tokenizer:
    """BPE over text whose spaces are ▁, with bytes for the rest, as Gemma's."""
    learnt = Tokenizer(BPE())
    learnt.normalizer = normalizers.Replace(" ", "▁")
    learnt.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    learnt.train_from_iterator(corpus(), BpeTrainer(vocab_size=100 + MERGES))
    model = json.loads(learnt.to_str())["model"]
    names = [*controls, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    merges = [tuple(pair) for pair in model["merges"]]
    made = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer, made.pre_tokenizer = learnt.normalizer, learnt.pre_tokenizer
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in controls])
    return made


def families() -> dict[str, tuple[Tokenizer, str, bool, dict[str, Any]]]:
    """Per folder: its tokenizer, its template, whether that knows tools, and what it is given besides."""
    stored = {path.stem: path.read_text() for path in TEMPLATES.glob("*.jinja")}
    qwen3, llama, gemma = words("", QWEN, TAGS), words("{1,3}", LLAMA, []), pieces(GEMMA)
    qwen2_5 = words("", QWEN, TAGS[:2])
    qwen2_5.normalizer = qwen3.normalizer = normalizers.NFC()
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    return {
        "smollm2": (byte_level_digits(digits), SMOLLM2, False, {}),
        "qwen2_5": (qwen2_5, stored["qwen2_5"], True, {}),
        "qwen3": (qwen3, stored["qwen3"], True, {}),
        "llama3": (llama, stored["llama3"], False, {"bos_token": LLAMA[0]}),
        "llama3_1": (llama, stored["llama3_1"], True, {"bos_token": LLAMA[0]}),
        "llama3_2": (llama, stored["llama3_2"], True, {"bos_token": LLAMA[0]} | DATE),
        "gemma2": (gemma, stored["gemma"], False, {"bos_token": "<bos>"}),
        "gemma3": (gemma, stored["gemma3"], False, {"bos_token": "<bos>"}),
    }


def byte_level_digits(split: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """SmolLM2's way of splitting: every digit by itself, words as GPT-2."""
    made = byte_level(pre_tokenizers.Digits(True), QWEN, [])
    made.pre_tokenizer = split
    return made


def ids(name: str, tokenizer: PreTrainedTokenizerFast, conversation: dict[str, Any], tools: bool, **more: Any) -> Any:
    """The prompt by the family's template; None where it has no word for something in the conversation."""
    messages, offered = conversation["messages"], conversation.get("tools")
    if offered and not tools:
        messages, offered = conversation.get("text") if name.startswith("gemma") else None, None
    try:
        return messages and tokenizer.apply_chat_template(
            messages, tools=offered, add_generation_prompt=True, return_dict=False, **more
        )
    except TemplateError as error:
        print(f"{name} refuses `{conversation['name']}`: {error}")
        return None


def main() -> None:
    for name, (made, template, tools, settings) in families().items():
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(made.to_str() + "\n")
        described = {"chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(described, ensure_ascii=False, indent=1) + "\n")
        bos = settings.pop("bos_token", None)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token=bos, chat_template=template)
        found = {c["name"]: ids(name, tokenizer, c, tools, **settings) for c in CONVERSATIONS}
        rows = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
        (folder / "reference.json").write_text(f"{{\n{rows}\n}}\n")
        print(name, made.get_vocab_size(), "entries;", sum(v is not None for v in found.values()), "conversations")


if __name__ == "__main__":
    main()
