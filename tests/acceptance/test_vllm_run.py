"""RL with the rollouts on a real vLLM: what it says it sampled with is what the learner computes, step after step."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.real_stage import lay_out, small, train
from support.rollouts import BASE, workers
from support.vllm import SERVED, python_with_vllm

from models.config import DecoderConfig
from schemas import keys
from schemas.lora import LoRA
from schemas.manifest import PolicyManifest, Probe
from storage import audit
from storage.memory import MemoryStore

QWEN3 = DecoderConfig.from_hf(
    SERVED.to_hf() | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 272}
)
"""Its vocabulary is padded: the tokenizer has 263."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "rate", "staleness", "least", "lora"),
    [(50, 0.0, 2, 0.0, None), (20, 5e-4, 0, 0.01, None), (20, 3e-3, 0, 0.01, LoRA(rank=4))],
    ids=["standing", "learning", "adapters"],
)
def test_vllm_samples_with_the_learners_policy(
    tmp_path: Path, steps: int, rate: float, staleness: int, least: float, lora: LoRA | None
) -> None:
    seen: list[dict[str, Any]] = []
    servers = {"python": str(python_with_vllm()), "adapters": lora is not None}
    vllm = {"engine": "vllm", "vllm": servers, "lease_seconds": 60.0}
    run = small(vllm, lora, steps=steps, max_staleness=staleness, optimizer={"learning_rate": rate})
    store = MemoryStore("vllm")
    spec = lay_out(store, tmp_path, run, shape=QWEN3)
    asyncio.run(train(store, spec, workers=1, report=lambda event, **f: seen.append({"event": event, **f})))

    taken = [e for e in seen if e["event"] == "step"]
    figures = [e["mismatch_kl"] for e in taken]
    mixed = sum(0 < e["reward"] < 1 for e in taken)
    entropy = [sum(e["entropy"] for e in part) / len(part) for part in (taken[:5], taken[-5:])]
    moves = [a.gap(b) for a, b in zip(probes(store, steps), probes(store, steps)[1:], strict=False)]
    counters = workers(store)[0].counters
    tokens = counters["tokens"]
    print(f"mismatch_kl over {steps} steps: mean {sum(figures) / steps:.1e}, max {max(figures):.1e}; {tokens:g} tokens")
    print(f"{mixed} steps with more than one reward; entropy of the first and last five {entropy}")
    print(f"probe moves from {min(moves):.3g} to {max(moves):.3g} a step; {counters}")
    assert len(figures) == steps
    assert max(map(abs, figures)) < 1e-4, "rounding takes it a hair below 0"
    assert min(moves) > least or rate == 0
    assert mixed >= steps / 2 and entropy[1] > entropy[0] / 2, "a policy that does one thing only would prove little"
    assert counters["probe_passed"] + counters["probe_blind"] >= 2
    assert (counters["probe_blind"] == 0) == (rate > 0)
    assert counters["engine_restarts"] == 0
    assert audit.verify(store, "test").ok


def probes(store: MemoryStore, steps: int) -> list[Probe]:
    """What the learner left with each published policy."""
    found = [store.get(keys.policy_manifest(BASE, v)).data for v in range(steps + 1)]
    return [PolicyManifest.from_bytes(data, "a policy").probe for data in found]
