"""The peer's side of `engine.py`, for a Python that has `google-tunix`: its vanilla sampler over padded batches.

On its own Qwen 3 decoder of the given model's shape, with weights of its own: what they are does not change the time.
"""

import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from flax import nnx
from side import answer
from tunix.generate import sampler as sampling
from tunix.generate import tokenizer_adapter
from tunix.models.qwen3 import model as qwen3

NEVER = 256
"""A token that is never sampled, so that every row runs to its budget."""
WINDOW = 128


class Bytes:
    """A letter of Latin-1 per token."""

    def encode(self, text: str, **_: object) -> list[int]:
        return list(text.encode("latin-1"))

    def decode(self, ids: list[int], **_: object) -> str:
        return bytes(int(i) & 255 for i in ids).decode("latin-1")

    def bos_id(self) -> int:
        return 1

    def eos_id(self) -> int:
        return NEVER

    def pad_id(self) -> int:
        return 0


def start(folder: str) -> Callable[..., None]:
    given = json.loads((Path(folder) / "config.json").read_text())
    shape = qwen3.ModelConfig(
        num_layers=given["num_hidden_layers"], vocab_size=given["vocab_size"], embed_dim=given["hidden_size"],
        hidden_dim=given["intermediate_size"], num_heads=given["num_attention_heads"], head_dim=given["head_dim"],
        num_kv_heads=given["num_key_value_heads"], rope_theta=10_000, norm_eps=1e-6, use_tied_embedding=True,
    )  # fmt: skip
    cache = sampling.CacheConfig(
        cache_size=512, num_layers=shape.num_layers, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim
    )
    model = qwen3.Qwen3(shape, rngs=nnx.Rngs(0))
    sampler, seeds = sampling.Sampler(model, tokenizer_adapter.TokenizerAdapter(Bytes()), cache), count()

    def work(prompts: list[list[int]], budgets: list[int], flight: int, window: int = WINDOW) -> None:
        """Batches of `flight` requests one after another, each until the longest request of all would be done: another
        number of tokens would be another program."""
        texts = [bytes(p).decode("latin-1") for p in prompts]
        for first in range(0, len(texts), flight):
            sampler(
                texts[first : first + flight], max_generation_steps=max(budgets), max_prompt_length=window,
                temperature=1.0, top_p=1.0, return_logprobs=True, eos_tokens=[NEVER], seed=next(seeds),
            )  # fmt: skip

    return work


if __name__ == "__main__":
    answer(start, sys.argv[1])
