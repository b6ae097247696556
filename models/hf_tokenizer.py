"""A tokenizer from Hugging Face's `tokenizer.json`, with text kept apart from control tokens."""

import hashlib
import json
from collections.abc import Sequence
from typing import ClassVar

from tokenizers import Tokenizer as Rust

from schemas.errors import RequestError


class HFTokenizer:
    """Made from the bytes of `tokenizer.json` and the files beside it, which `to_files` gives back unchanged."""

    BESIDE: ClassVar[tuple[str, ...]] = (
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "generation_config.json",
    )

    def __init__(self, files: dict[str, bytes], where: str) -> None:
        try:
            self._rust = Rust.from_str(files["tokenizer.json"].decode())
        except Exception as error:  # the library raises bare Exception
            raise RequestError(f"{where}/tokenizer.json cannot be read ({error}): fetch it again.") from error
        # Special tokens are split out of text unless this is set; then what a user writes could open a turn.
        self._rust.encode_special_tokens = True
        self._files = files
        self._controls = {
            token.content: number for number, token in self._rust.get_added_tokens_decoder().items() if token.special
        }
        self.vocab_size = max(self._rust.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.digest = hashlib.sha256(files["tokenizer.json"]).hexdigest()
        self.chat_template = _chat_template(files, where)

    def encode(self, text: str) -> list[int]:
        whole = text.encode("utf-8", errors="replace").decode()  # the library refuses lone surrogates
        return self._rust.encode(whole, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._rust.decode(list(ids), skip_special_tokens=False)

    def special(self, name: str) -> int | None:
        return self._controls.get(name)

    def to_files(self) -> dict[str, bytes]:
        return dict(self._files)


def _chat_template(files: dict[str, bytes], where: str) -> str:
    """The Jinja text of the model's chat template, "" where there is none."""
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode()
    try:
        template = json.loads(files.get("tokenizer_config.json", b"{}")).get("chat_template") or ""
    except ValueError as error:
        raise RequestError(f"{where}/tokenizer_config.json is not valid JSON ({error}): fetch it again.") from error
    return template if isinstance(template, str) else ""
