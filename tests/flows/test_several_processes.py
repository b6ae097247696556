"""`headrace run` with a learner in two processes, from the warm-up to the promoted weights."""

import json
from pathlib import Path

import pytest

from flows.cli import main
from storage.expired import newest_whole
from storage.open import open_store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]
SETTINGS = (
    "rl.steps=4", "rl.groups_per_batch=2", "rl.group_size=4", "rl.checkpoint_every=2", "rl.window_seconds=0.05",
    "rl.mesh.fsdp=2", "rl.processes=2", "rollout.slots=8", "rollout.max_concurrency=8", "rollout.max_length=48",
    "rollout.max_tokens_per_turn=4", "rollout.seal_seconds=0.5", "evaluation.workers=1",
)  # fmt: skip


def test_a_run_with_a_learner_in_two_processes(
    project: Path, root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    assert main(["run", str(project / "small.toml"), "--root", root, *settings]) == 0
    assert "learner: step 4/4" in capsys.readouterr().out
    assert main(["audit", "verify", "small", "--root", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]

    store = open_store(root)
    (spec,) = (key for key in store.list("runs/small/rl-") if key.endswith("/spec.json"))
    last = newest_whole(store, spec.removesuffix("/spec.json"))
    assert last is not None and (last.step, last.numerics.processes, last.numerics.mesh) == (4, 2, (1, 2, 1))
