"""RL on a vLLM server behind a URL that is started again, between steps and in the middle of turns."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.fake_vllm import FakeVllm
from support.real_stage import SHAPE, lay_out, small, talkative, train
from support.rollouts import workers

from rollout import vllm_fleet
from schemas.config import Run
from storage import audit
from storage.memory import MemoryStore

STEPS = 6


async def started_again(fake: FakeVllm, seen: list[dict[str, Any]]) -> None:
    """In the middle of turns, then at once after a step."""
    while fake._runner is not None:
        await asyncio.sleep(0.01)
    await fake._stopping
    fake.dies_at = 0
    await fake.start()
    done = len(seen)
    while len(seen) == done:
        await asyncio.sleep(0.01)
    await fake.stop()
    await fake.start()


@pytest.mark.slow
def test_a_stage_goes_on_when_its_server_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_fleet, "BACK_SECONDS", 0.01)
    seen: list[dict[str, Any]] = []
    store = MemoryStore("vllm")

    def report(event: str, **fields: Any) -> None:
        if event == "step":
            seen.append(fields)

    async def work() -> None:
        fake = FakeVllm(SHAPE, talkative(SHAPE), slots=6)
        await fake.start()
        fake.dies_at = 20
        run = small({"engine": "vllm", "workers": 1, "lease_seconds": 60.0}, steps=STEPS, max_staleness=0)
        raw = run.model_dump(mode="json")
        raw["rollout"]["vllm"] |= {"urls": [fake.url], "folder": str(tmp_path / "weights")}
        raw["evaluation"]["workers"] = 1
        spec = lay_out(store, tmp_path, Run.model_validate(raw))
        restarting = asyncio.ensure_future(started_again(fake, seen))
        await train(store, spec, workers=1, report=report)
        await restarting
        await fake.stop()

    asyncio.run(work())
    counters = workers(store)[0].counters
    assert len(seen) == STEPS and max(abs(e["mismatch_kl"]) for e in seen) < 1e-4
    assert counters["failed"] == 0 and counters["engine_restarts"] >= 1
    assert audit.verify(store, "test").ok
