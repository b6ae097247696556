"""The side of transformers in `engine.py`: `generate` over padded batches, for a Python that has it and torch."""

import sys
from collections.abc import Callable

import torch
from side import answer
from transformers import AutoModelForCausalLM

PAD = 0


def start(folder: str) -> Callable[..., None]:
    torch.set_num_threads(1)  # more of them only wait for each other at these sizes
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def work(prompts: list[list[int]], budgets: list[int], flight: int) -> None:
        """Batches of `flight` requests one after another, each until its longest is done."""
        for first in range(0, len(prompts), flight):
            batch = prompts[first : first + flight]
            width = max(map(len, batch))
            tokens = torch.tensor([[PAD] * (width - len(p)) + p for p in batch])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch])
            model.generate(
                tokens, attention_mask=mask, max_new_tokens=max(budgets[first : first + flight]), do_sample=True,
                top_k=0, top_p=1.0, temperature=1.0, eos_token_id=None, pad_token_id=PAD,
            )  # fmt: skip

    return work


if __name__ == "__main__":
    answer(start, sys.argv[1])
