"""One process with fake devices that makes the same updates on several meshes, and prints what came out as JSON.

python -m support.meshes '[[1, 1, 1], [2, 2, 2]]' '{"loss": {"algorithm": "ppo"}}' null, with XLA_FLAGS set by `told`.
"""

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import jax
import numpy as np

from models.pure import init_params
from models.sharding import placement
from schemas.lora import LoRA
from schemas.manifest import CheckpointManifest, WeightsRef
from schemas.mesh import Mesh
from storage.memory import MemoryStore
from support.protocol import BASE, config, trajectory
from support.tiny import TINY, lively
from trainer.assembler import Row
from trainer.jax_updater import JaxUpdater

SHAPE = dataclasses.replace(TINY, num_hidden_layers=1, vocab_size=38)
DEVICES = 8
REF = WeightsRef(prefix="p", sha256="0" * 64)
ROWS = 8


MeshSizes = tuple[int, int, int]
"""Of data, fsdp and tensor."""


def learned(meshes: list[MeshSizes], lora: dict[str, Any] | None = None, **rl: Any) -> dict[str, Any]:
    """What `main` prints of these meshes, adapters and settings of `rl`."""
    return told("support.meshes", json.dumps(meshes), json.dumps(rl), json.dumps(lora))


def told(module: str, *arguments: str) -> Any:
    """The last line that a module of ours prints as JSON, from a process with fake devices."""
    environment = os.environ | {
        # Little optimized: most of the time goes into compiling.
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES} --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def sized(mesh: MeshSizes) -> Mesh:
    return Mesh(**dict(zip(("data", "fsdp", "tensor"), mesh, strict=True)))


def updater(store: MemoryStore, mesh: MeshSizes, rl: dict[str, Any], lora: LoRA | None) -> JaxUpdater:
    settings = {"group_size": 2, "groups_per_batch": ROWS // 2, "optimizer": {"learning_rate": 0.01, "eps": 1e-3}} | rl
    run = config(rollout={"max_length": 16}, mesh=sized(mesh), **settings).model_copy(update={"lora": lora})
    return JaxUpdater(store, BASE, run, SHAPE, jax.tree.map(np.asarray, lively(init_params(SHAPE, 0))))


def batch(number: int) -> tuple[tuple[Row, ...], tuple[float, ...]]:
    """Rows of uneven lengths and their advantages."""
    draw = np.random.default_rng(number)
    rows = []
    for i in range(ROWS):
        size = 6 + i
        mask = tuple(bool(m) for m in np.arange(size) >= 3)
        made = trajectory(
            i // 2, i % 2, mask=mask, tokens=tuple(int(t) for t in draw.integers(0, SHAPE.vocab_size, size)),
            logprobs=tuple(-float(p) * m for p, m in zip(draw.random(size) * 4, mask, strict=True)),
        )  # fmt: skip
        rows.append(Row(("w", number, i), made, f"d{i}"))
    return tuple(rows), tuple(float(a) for a in draw.normal(size=ROWS))


def manifest(made: JaxUpdater) -> CheckpointManifest:
    prefix, files, optimizer = made.save(1, "L1")
    return CheckpointManifest(
        step=1, version=1, learner="L1", prefix=prefix, files=files, params_sha256=made.params_digest(),
        optimizer_sha256=optimizer, prng="", cursor={}, workers=0, low=0, limit=0, ended=(), admitted={}, recorded=(),
        unreadable=(), empty_steps=0, dispositions={}, ledger_index=0, ledger_head="", parent=None, initial=REF,
        policy=REF, config_digest="", code="", numerics=made.numerics(),
    )  # fmt: skip


def state(made: JaxUpdater) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(made._whole)]


def held(made: JaxUpdater) -> dict[str, list[int]]:
    """The shape of what one device holds of every array of the state."""
    flat, _ = jax.tree.flatten_with_path(made._whole)
    return {jax.tree_util.keystr(path): list(x.addressable_shards[0].data.shape) for path, x in flat}


def gap(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """The largest difference of two states, as a share of the other's size or of 0.1 where it is smaller."""
    pairs = zip(one, other, strict=True)
    return max(float(np.max(np.abs(a - b) / (np.abs(b) + 0.1))) for a, b in pairs)


def main(meshes: list[MeshSizes], rl: dict[str, Any], lora: LoRA | None) -> None:
    """Two updates on each mesh against those on the first; each one's snapshot after the first, read on the next."""
    store, found, saved, first = MemoryStore(), [], None, None
    for mesh in meshes:
        made = updater(store, mesh, rl, lora)
        restored = None
        if saved is not None:
            made.load(saved[0])
            restored = all(map(np.array_equal, state(made), saved[1])) and held(made) == held(
                updater(store, mesh, rl, lora)
            )
            made = updater(store, mesh, rl, lora)
        figures = made.update(*batch(0))
        saved = manifest(made), state(made)
        figures |= {f"{k}_2": v for k, v in made.update(*batch(1)).items()}
        first = first or state(made)
        found.append({"figures": figures, "gap": gap(state(made), first), "held": held(made), "restored": restored})
    print(json.dumps({"meshes": found, "rows": rows_held()}))


def rows_held() -> list[int]:
    """What one device holds of a micro-batch [8, 4] on a mesh of data 2, fsdp 2, tensor 2."""
    spread = placement(Mesh(data=2, fsdp=2, tensor=2))
    return list(jax.tree.leaves(spread.dealt([np.zeros((8, 4), np.int32)]))[0].addressable_shards[0].data.shape)


if __name__ == "__main__":
    adapters = json.loads(sys.argv[3])
    main(json.loads(sys.argv[1]), json.loads(sys.argv[2]), LoRA(**adapters) if adapters else None)
