"""RL with the rollouts on a real SGLang: what it says it sampled with is what the learner computes, step after step."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.real_stage import lay_out, small, train
from support.rollouts import workers
from support.vllm import WIDE, python_with_sglang

from models.config import DecoderConfig
from storage import audit
from storage.memory import MemoryStore

QWEN3 = DecoderConfig.from_hf(
    WIDE.to_hf() | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 272}
)
"""Its vocabulary is padded: the tokenizer has 263."""


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "rate", "staleness"), [(12, 0.0, 2), (20, 1e-4, 0)], ids=["standing", "learning"])
def test_sglang_samples_with_the_learners_policy(tmp_path: Path, steps: int, rate: float, staleness: int) -> None:
    seen: list[dict[str, Any]] = []
    sglang = {"engine": "sglang", "sglang": {"python": str(python_with_sglang())}, "lease_seconds": 60.0}
    run = small(sglang, None, steps=steps, max_staleness=staleness, optimizer={"learning_rate": rate})
    store = MemoryStore("sglang")
    spec = lay_out(store, tmp_path, run, shape=QWEN3)
    asyncio.run(train(store, spec, workers=1, report=lambda event, **f: seen.append({"event": event, **f})))

    taken = [e for e in seen if e["event"] == "step"]
    figures = [e["mismatch_kl"] for e in taken]
    mixed = sum(0 < e["reward"] < 1 for e in taken)
    counters = workers(store)[0].counters
    print(f"mismatch_kl over {steps} steps: mean {sum(figures) / steps:.1e}, max {max(figures):.1e}; {counters}")
    assert len(figures) == steps
    assert max(map(abs, figures)) < 1e-4, "rounding takes it a hair below 0"
    assert mixed >= steps / 2, "a policy that does one thing only would prove little"
    assert counters["probe_passed"] + counters["probe_blind"] >= 2
    assert (counters["probe_blind"] == 0) == (rate > 0)
    assert counters["engine_restarts"] == 0
    assert audit.verify(store, "test").ok
