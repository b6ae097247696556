"""A byte tokenizer and a small Hugging Face one."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from models.hf_tokenizer import HFTokenizer
from models.tokenizer import DESCRIPTION, ByteTokenizer

BYTES = ByteTokenizer()


def as_hf(files: dict[str, bytes]) -> HFTokenizer:
    return HFTokenizer({name: data for name, data in files.items() if name != DESCRIPTION}, "the/folder")


def chat_tokenizer() -> HFTokenizer:
    """Byte-level BPE with ChatML's tokens, and a template that would put a start token before every text."""
    letters = {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    rust = Tokenizer(BPE(vocab=letters, merges=[]))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    rust.add_tokens([AddedToken("<tool_call>", special=False)])
    start = rust.token_to_id("<|im_start|>")
    rust.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", start)])
    config = {"chat_template": "{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}"}
    return as_hf({"tokenizer.json": rust.to_str().encode(), "tokenizer_config.json": json.dumps(config).encode()})


CHAT = chat_tokenizer()
