"""One process with fake devices that takes the same steps of a warm-up on several meshes, and prints what came out.

python -m support.mesh_warm_ups '[[1, 1, 1], [2, 2, 2]]' '{"kind": "dpo"}' null, with XLA_FLAGS set by `meshes.told`.
"""

import json
import sys
from typing import Any

import jax
import numpy as np

from models.pure import init_params
from models.sharding import placement
from schemas.lora import LoRA
from schemas.optimizer import Optimizer
from schemas.warm_ups import DPO, ORPO, SFT, WarmUp
from support.meshes import SHAPE, MeshSizes, gap, sized
from support.tiny import lively
from trainer.lessons import preferring, score_reference, supervised
from trainer.lora import freeze
from trainer.optimizer import make_optimizer
from trainer.sft_data import Example
from trainer.step import init_state

COUNT, STEPS, LENGTH = 8, 3, 16
KINDS: dict[str, type[SFT] | type[DPO] | type[ORPO]] = {"sft": SFT, "dpo": DPO, "orpo": ORPO}


def examples(seed: int) -> list[Example]:
    """Streams of uneven lengths, trained from their fourth token on."""
    draw = np.random.default_rng(seed)
    sizes = range(LENGTH - COUNT, LENGTH)
    return [(draw.integers(0, SHAPE.vocab_size, n).tolist(), [i >= 3 for i in range(n)]) for n in sizes]


def fitted(mesh: MeshSizes, stage: WarmUp, lora: LoRA | None) -> dict[str, Any]:
    """The state after some steps on a mesh, each with all examples or pairs, and the last one's figures."""
    spread, optimizer = placement(sized(mesh)), make_optimizer(stage.optimizer, STEPS)
    params = jax.tree.map(np.asarray, lively(init_params(SHAPE, 0)))
    trained, frozen = freeze(lora, params, 0, spread)
    chosen = np.arange(COUNT)
    if isinstance(stage, SFT):
        lesson = supervised(SHAPE, optimizer, examples(1), stage, frozen, spread)
    else:
        pairs = list(zip(examples(1), examples(2), strict=True))
        reference = score_reference(SHAPE, params, pairs, stage, chosen[None], 600.0, spread)
        assert reference is not None
        lesson = preferring(SHAPE, optimizer, pairs, stage, reference, frozen, spread)
    state, figures = init_state(trained, optimizer, spread), {}
    for _ in range(STEPS):
        state, figures = lesson.step(state, lesson.parts(chosen))
    return {"state": jax.tree.leaves(state), "figures": {k: float(v) for k, v in figures.items()}}


def main(meshes: list[MeshSizes], settings: dict[str, Any], lora: LoRA | None) -> None:
    """The same steps on each mesh against those on the first."""
    stage = KINDS[settings["kind"]](
        name="w", data="x.jsonl", steps=STEPS, batch_size=COUNT, max_length=LENGTH,
        optimizer=Optimizer(learning_rate=0.01, eps=1e-3), **settings,
    )  # fmt: skip
    made = [fitted(mesh, stage, lora) for mesh in meshes]
    states = [[np.asarray(x) for x in one["state"]] for one in made]
    print(json.dumps([{"figures": m["figures"], "gap": gap(s, states[0])} for m, s in zip(made, states, strict=True)]))


if __name__ == "__main__":
    adapters = json.loads(sys.argv[3])
    main(json.loads(sys.argv[1]), json.loads(sys.argv[2]), LoRA(**adapters) if adapters else None)
