"""Text to token ids and back, and the byte tokenizer of models made from scratch.

Text never becomes a control token, whatever it says: only a chat format puts those in, by id. A user who writes
`<|assistant|>` has written thirteen characters.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Protocol

from models.hf_tokenizer import HFTokenizer
from schemas.errors import RequestError

DESCRIPTION = "headrace_tokenizer.json"
CONTROLS = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|call|>", "<|end|>")


class Tokenizer(Protocol):
    """What engines, chat formats and trainers know of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        ...

    @property
    def chat_template(self) -> str:
        """The Jinja text that its model's folder gives for conversations, "" where there is none. Never run."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what defines it."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; never a control token."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; control tokens are written out as their names."""
        ...

    def special(self, name: str) -> int | None:
        """The id of a control token, or None where the tokenizer has none of that name."""
        ...

    def to_files(self) -> dict[str, bytes]:
        """The files that `tokenizer_from_files` and other programs read it back from."""
        ...


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8; 256 to 262 are the control tokens of `TagFormat`."""

    vocab_size = 256 + len(CONTROLS)
    chat_template = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(_description()).hexdigest()

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", errors="replace"))

    def decode(self, ids: Sequence[int]) -> str:
        """Bytes that are not UTF-8 become U+FFFD; ids beyond the vocabulary are left out."""
        parts = (bytes([i]) if i < 256 else CONTROLS[i - 256].encode() for i in ids if i < self.vocab_size)
        return b"".join(parts).decode("utf-8", errors="replace")

    def special(self, name: str) -> int | None:
        return 256 + CONTROLS.index(name) if name in CONTROLS else None

    def to_files(self) -> dict[str, bytes]:
        """Our own short description, and a `tokenizer.json` by which other programs load the same tokenizer."""
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "pad_token": "<|pad|>"}
        return {
            DESCRIPTION: _description(),
            "tokenizer.json": _pretty(_byte_level()),
            "tokenizer_config.json": _pretty(config),
        }


def tokenizer_from_files(read: Callable[[str], bytes], names: Sequence[str], where: str) -> Tokenizer:
    """The tokenizer of a weights folder: ours if it says so, else that of `tokenizer.json`."""
    if DESCRIPTION in names:
        if read(DESCRIPTION) != _description():
            raise RequestError(f"{where}/{DESCRIPTION} describes another tokenizer than ours: use our own exports.")
        return ByteTokenizer()
    if "tokenizer.json" not in names:
        raise RequestError(f"{where} has no tokenizer.json: give a folder that holds the model's tokenizer.")
    kept = {name: read(name) for name in ("tokenizer.json", *HFTokenizer.BESIDE) if name in names}
    return HFTokenizer(kept, where)


def _description() -> bytes:
    return _pretty({"kind": "bytes", "controls": list(CONTROLS)})


def _pretty(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _byte_level() -> dict[str, object]:
    """The byte tokenizer in the format of Hugging Face `tokenizers`: byte-level BPE without merges."""
    shown = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256 + i, "content": name, **flags} for i, name in enumerate(CONTROLS)],
        "normalizer": None,
        "pre_tokenizer": shown,
        "post_processor": None,
        "decoder": shown,
        "model": {"type": "BPE", "vocab": {_shown(byte): byte for byte in range(256)}, "merges": []},
    }


def _shown(byte: int) -> str:
    """GPT-2's printable stand-in of a byte: itself where printable, else the next free character from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    return chr(256 + sum(1 for other in range(byte) if other not in printable))
