"""The side of vLLM in `engine.py`: its engine inside this process, a request added whenever one is done."""

import os
import sys
from collections.abc import Callable

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # processor seconds are those of this process

from side import answer
from vllm import LLM, SamplingParams


def start(folder: str, most: int, context: int) -> Callable[..., None]:
    model = LLM(
        folder, dtype="float32", max_model_len=context, max_num_seqs=most, skip_tokenizer_init=True,
        enable_prefix_caching=False, generation_config="vllm", disable_log_stats=True, seed=0,
        gpu_memory_utilization=0.2, kv_cache_memory_bytes=1 << 30, enforce_eager=True,
        enable_chunked_prefill=False,  # on a CPU it dies where a prompt with a seed is cut
    )  # fmt: skip
    engine = model.llm_engine

    def work(prompts: list[list[int]], budgets: list[int], flight: int) -> None:
        """All requests, `flight` at a time, with the log-prob of every token."""
        waiting, running = list(enumerate(zip(prompts, budgets, strict=True)))[::-1], 0
        while waiting or running:
            while waiting and running < flight:
                number, (prompt, budget) = waiting.pop()
                sampling = SamplingParams(
                    max_tokens=budget, temperature=1.0, ignore_eos=True, logprobs=0, detokenize=False, seed=number
                )
                engine.add_request(str(number), {"prompt_token_ids": prompt}, sampling)
                running += 1
            running -= sum(out.finished for out in engine.step())

    return work


if __name__ == "__main__":
    answer(start, sys.argv[1], *map(int, sys.argv[2:]))
