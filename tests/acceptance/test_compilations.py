"""Nothing is compiled after the second RL step, in learner and engine, however long episodes become."""

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from support.real_stage import SEED, lay_out, small, train

from schemas import seeds
from schemas.data import Task
from storage.memory import MemoryStore

STEPS, GROUPS = 6, 2
COMPILED = re.compile(r"Finished XLA compilation of (\S+)")


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The names of programs as they are compiled, by any thread of this process."""
    names: list[str] = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            names.extend(COMPILED.findall(record.getMessage()))

    handler, logger = Noting(), logging.getLogger("jax")
    jax.clear_caches()
    jax.config.update("jax_log_compiles", True)
    logger.addHandler(handler)
    yield names
    logger.removeHandler(handler)
    jax.config.update("jax_log_compiles", False)


def growing() -> list[Task]:
    """Tasks whose prompts become longer from group to group, up to most of the context."""
    count = STEPS * GROUPS
    lengths = {seeds.task_index(SEED, count, group): 5 + 18 * group for group in range(count)}
    return [Task(f"t{i}", f"{i:03d}" + "x" * (lengths[i] - 3), "0") for i in range(count)]


def test_nothing_is_compiled_after_the_second_step(tmp_path: Path, compiled: list[str]) -> None:
    early: list[str] = []

    def report(event: str, **fields: Any) -> None:
        if event == "step" and fields["step"] == 2:
            early.extend(compiled)

    run = small({"max_length": 256}, steps=STEPS, groups_per_batch=GROUPS, max_staleness=1)
    store = MemoryStore("compilations")
    spec = lay_out(store, tmp_path, run, growing())
    asyncio.run(train(store, spec, workers=1, report=report))
    assert {"jit(decode)", "jit(prefill)", "jit(add)", "jit(update)"} <= set(early), "the counter counts"
    assert compiled[len(early) :] == []
