"""Retention over 200 checkpoints, and over real weights: the audit and the replay of everything kept stay ok."""

import asyncio
import time
from pathlib import Path

import pytest
from support.expiring import DAY
from support.kept import DAYS, crown, finished, retrained, settings, write_end, write_run
from support.protocol import BASE
from support.real_stage import lay_out, small, train

from models.weights import load_folder, params_digest
from schemas.errors import RequestError
from storage import audit
from storage.audit_runs import checkpoints, find_checkpoint
from storage.expired import check_weights, expired_checkpoints
from storage.folder import FolderStore
from storage.memory import MemoryStore
from tasks import replay
from tasks.expiry import collect
from tasks.inventory import take_inventory


def test_200_checkpoints() -> None:
    store, run = MemoryStore("many", wall=lambda: DAY), settings(200, {"keep_every": 40}, checkpoint_every=1)
    finished(store, run)
    crown(store, ("test@77", find_checkpoint(store, "test", 77)[1].policy))
    (plan,) = collect(store, ["test"], lambda: DAY + 2 * DAYS)
    kept = [40, 77, 80, 120, 160, 198, 199, 200]
    assert [i.step for i in plan.items if i.kept] == kept
    assert len(checkpoints(store, BASE)) == 200 and len(expired_checkpoints(store, BASE)) == 192
    found = audit.verify(store, "test")
    assert found.ok and found.total("expired") == 192
    for step, start in zip((*kept, 39, 150), (0, 40, 77, 80, 120, 160, 198, 199, 0, 120), strict=True):
        again = retrained(store, run, step)
        assert (again.bitwise, again.start) == (True, start)


@pytest.mark.slow
def test_real_weights(tmp_path: Path) -> None:
    """Kept and expired checkpoints are retrained to the bit, from a snapshot that is there or from version 0."""
    store, run = FolderStore(tmp_path / "store"), small(steps=5, checkpoint_every=1, max_staleness=0)
    run = run.model_copy(update={"retention": run.retention.model_copy(update={"min_age_hours": 0.0})})
    made = asyncio.run(train(store, lay_out(store, tmp_path, run), 1))
    write_run(store, run)
    write_end(store, made)
    (plan,) = collect(store, ["test"], time.time)
    assert [i.step for i in plan.items if i.kept] == [4, 5]
    held = take_inventory(store, BASE)
    assert not any(held.snapshot(step).keys or held.policy(step).keys for step in (1, 2, 3))
    assert [p.name for p in (tmp_path / "store" / BASE / "checkpoints/00000002").iterdir() if p.is_dir()] == [".gen"]
    assert audit.verify(store, "test").ok
    policy_of_5 = find_checkpoint(store, "test", 5)[1].policy
    with pytest.raises(RequestError, match="retrains it from version 0"):
        check_weights(store, find_checkpoint(store, "test", 3)[1].policy)
    for step, start in ((3, 0), (5, 4)):
        out = tmp_path / f"weights-{step}"
        found = replay.replay(store, "test", step, from_start=False, on_event=lambda event: None, weights=out)
        assert (found["bitwise"], found["optimizer_bitwise"], found["start"]) == (True, True, start)
        weights = find_checkpoint(store, "test", step)[1].policy
        assert params_digest(load_folder(out)[1]) == weights.sha256
        kept = {p.name for p in out.iterdir()}
        assert kept == {k.rpartition("/")[2] for k in store.list(f"{policy_of_5.prefix}/")}
    with pytest.raises(RequestError, match="is there and is not empty"):
        replay.replay(store, "test", 5, from_start=False, on_event=lambda event: None, weights=out)
