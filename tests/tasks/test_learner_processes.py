"""A learner in two real processes learns what one with two devices does, and goes on whichever of them is killed."""

import asyncio
import dataclasses
import threading
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.real_stage import SHAPE, lay_out, small
from support.rollouts import BASE

from models.stored import load_weights
from rollout.worker import Worker
from schemas.errors import HeadraceError
from schemas.lora import LoRA
from schemas.manifest import RLSpec
from schemas.mesh import Mesh
from storage import audit
from storage.folder import FolderStore
from tasks import processes
from tasks import replay as task
from tasks.children import Event
from tasks.members import run_members
from tasks.supervise import Restarts, keep_running
from trainer.recovery import newest_checkpoint

pytestmark = pytest.mark.slow
FAKE = "--xla_force_host_platform_device_count={}"


class Shooter:
    """Takes the learner's events, and kills a process of it after some of its steps."""

    def __init__(self, targets: dict[int, int]) -> None:
        self._targets = dict(targets)
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if event["event"] == "step" and (number := self._targets.pop(event["step"], None)) is not None:
            (one,) = [c for c in psutil.Process().children() if _is(c, number)]
            one.kill()

    def said(self, kind: str) -> list[Event]:
        return [e for e in self.events if e["event"] == kind]


def _is(child: psutil.Process, number: int) -> bool:
    words = child.cmdline()
    return "trainer.member_process" in words and words[words.index("--process") + 1] == str(number)


async def learn(store: FolderStore, spec: RLSpec, shooter: Shooter) -> None:
    """Two processes under their supervisor beside a worker in this one, until the ledger is closed."""
    over = threading.Event()

    def keep() -> str:
        try:
            outcome = keep_running(
                processes.learner_member(store.url, BASE), shooter, stop=lambda: False, silence=300, start=300,
                restarts=Restarts(limit=3, pause=0.01), run=partial(run_members, count=2),
            )  # fmt: skip
            return outcome.cause
        except HeadraceError as error:
            return str(error)
        finally:
            over.set()

    worker = Worker(store, BASE, spec, load=load_weights, index=0, report=lambda *_, **__: None, stop=over.is_set)
    working = asyncio.ensure_future(worker.run())
    assert await asyncio.to_thread(keep) == ""
    await working


def alone(devices: int, monkeypatch: pytest.MonkeyPatch, store: FolderStore) -> dict[str, Any]:
    """What one process with so many devices makes of the run's ledger, from version 0 on."""
    monkeypatch.setenv("XLA_FLAGS", FAKE.format(devices))
    return task.replay(store, "test", None, from_start=True, on_event=lambda event: None)


def check(store: FolderStore, found: dict[str, Any], mesh: tuple[int, int, int], steps: int) -> None:
    """Two processes made all steps on the mesh, and one makes the same of their ledger, to the bit."""
    verified = audit.verify(store, "test")
    assert verified.ok, verified.sentence()
    last = newest_checkpoint(store, BASE)
    assert last is not None and last.step == steps
    assert (last.numerics.processes, last.numerics.mesh) == (2, mesh)
    assert found["records"] == steps and not found["same_numerics"]
    assert found["bitwise"] and found["optimizer_bitwise"]


def test_two_processes_learn_what_one_does_whichever_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path / "store")
    run = small(steps=7, checkpoint_every=3, mesh={"fsdp": 2}, processes=2)
    shooter = Shooter({2: 1, 4: 0})
    asyncio.run(learn(store, lay_out(store, tmp_path, run), shooter))
    restarts = [e["message"] for e in shooter.said("restart")]
    assert restarts == [
        "learner lost its process 1, which was killed by SIGKILL; starting it again in 0.01 s",
        "learner was killed by SIGKILL; starting it again in 0.02 s",
    ]
    first, second, third = shooter.said("recovered")
    assert first["replayed"] == 0 and second["replayed"] >= 2 and third["checkpoint"] >= 3
    check(store, alone(2, monkeypatch, store), (1, 2, 1), 7)


CASES = [
    pytest.param({"loss": {"algorithm": "ppo"}}, None, {"data": 2}, id="critic"),
    pytest.param(
        {"loss": {"kl": "k1_reward", "kl_coefficient": 0.1}}, LoRA(rank=2), {"fsdp": 2, "tensor": 2}, id="adapters"
    ),
    pytest.param(
        {"loss": {"kl": "k3", "kl_coefficient": 0.1, "correction": "decoupled"}, "epochs": 2, "max_staleness": 3}
        | {"publish_dtype": "bfloat16"},
        None,
        {"tensor": 2},
        id="two updates",
    ),
]


@pytest.mark.parametrize(("settings", "lora", "mesh"), CASES)
def test_whatever_is_learned_two_processes_learn_it_as_one(
    settings: dict[str, Any], lora: LoRA | None, mesh: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = Mesh(**mesh)
    monkeypatch.setenv("XLA_FLAGS", FAKE.format(sizes.devices // 2))
    run = small(steps=2, mesh=mesh, processes=2, **settings).model_copy(update={"lora": lora})
    store, shape = FolderStore(tmp_path / "store"), dataclasses.replace(SHAPE, num_key_value_heads=2)
    asyncio.run(learn(store, lay_out(store, tmp_path, run, shape=shape), Shooter({})))
    found = alone(sizes.devices, monkeypatch, store)
    check(store, found, (sizes.data, sizes.fsdp, sizes.tensor), 2)
