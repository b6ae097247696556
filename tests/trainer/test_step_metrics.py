"""The steps' figures as Parquet: a row for each ledgered step, whatever is killed and whenever."""

import pyarrow.parquet as pq
import pytest
from support.protocol import BASE, FakeWorker, config, learner, trajectory

from schemas import keys
from schemas.metrics import COLUMNS, FIGURES
from storage import step_metrics
from storage.folder import FolderStore
from storage.memory import MemoryStore
from storage.step_metrics import read_metrics, write_metrics
from trainer.assembler import Row
from trainer.metrics import batch

STEPS = 5
COMPUTED = [name for name in FIGURES if not name.startswith("trainer/")]


def play(store, killed_after=None):
    """A run to its end; its learner dies after so many steps and another goes on."""
    run = config(steps=STEPS)
    made = learner(store, run, compact=lambda: write_metrics(store, BASE))
    made.recover()
    worker = FakeWorker(store, run)
    if killed_after is not None:
        go(made, worker, killed_after)
        made = learner(store, run, "L2", compact=lambda: write_metrics(store, BASE))
        made.recover()
    go(made, worker, STEPS)
    worker.leave()
    assert made.close() == "finished"
    write_metrics(store, BASE)
    return read_metrics(store, BASE)


def go(made, worker, steps):
    for _ in range(20 * STEPS):
        if made.progress.step >= steps:
            return
        worker.work()
        made.tick()
    raise AssertionError(f"only {made.progress.step} steps")


@pytest.mark.parametrize("killed_after", [0, 1, 2, 3, 4])
def test_a_killed_learner_neither_loses_nor_doubles_a_step(killed_after):
    whole, cut = play(MemoryStore()), play(MemoryStore(), killed_after)
    assert cut["step"].to_pylist() == list(range(STEPS))
    assert cut.schema == COLUMNS
    assert cut.select(COMPUTED).equals(whole.select(COMPUTED))
    assert None not in cut["mismatch_kl"].to_pylist()
    assert None not in whole["trainer/seconds"].to_pylist()


@pytest.mark.parametrize(
    ("parts", "reward", "solved"),
    [((), 1.0, 1.0), ((), 0.9, 0.0), ((("success", 1.0),), 0.9, 1.0), ((("success", 0.0),), 1.5, 0.0)],
)
def test_success_is_what_the_reward_calls_so(parts, reward, solved):
    """As it is in evaluations: a reward that also counts its costs may be 0.9 for a task that is solved."""
    rows = [trajectory(0, 0, reward=reward, components=(("cost", 0.1), *parts)), trajectory(0, 1, reward=0.0)]
    found = batch([Row(("w", 0, i), row, "") for i, row in enumerate(rows)])
    assert found["success"] == solved / 2 and found["reward"] == pytest.approx(reward / 2)


def test_the_folder_is_read_as_one_data_set(tmp_path):
    """As the page says: with pyarrow alone, past the generations that a folder store keeps."""
    store = FolderStore(tmp_path)
    found = play(store, killed_after=3)
    assert pq.read_table(tmp_path / keys.metrics(BASE)).equals(found)


def test_files_cover_fixed_ranges_and_are_brought_up_to_date(monkeypatch):
    monkeypatch.setattr(step_metrics, "PART", 2)
    store = MemoryStore()
    found = play(store)
    assert found["step"].to_pylist() == list(range(STEPS))
    assert store.list(f"{keys.metrics(BASE)}/") == [keys.metrics_part(BASE, i) for i in (0, 2, 4)]
    before = [store.get(k).generation for k in store.list(f"{keys.metrics(BASE)}/")]
    write_metrics(store, BASE)
    assert [store.get(k).generation for k in store.list(f"{keys.metrics(BASE)}/")] == before


def test_the_newest_step_has_its_row_before_its_figures_are_in_the_ledger():
    store, run = MemoryStore(), config(steps=STEPS)
    made = learner(store, run)
    made.recover()
    go(made, FakeWorker(store, run), 2)
    write_metrics(store, BASE)
    found = read_metrics(store, BASE)
    assert found["step"].to_pylist() == [0, 1]
    assert [v is None for v in found["mismatch_kl"].to_pylist()] == [False, True]
    assert found["trained"].to_pylist() == [4, 4]
