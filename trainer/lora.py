"""Low-rank adapters (Hu et al., 2021, arXiv 2106.09685) as pure functions over the parameter tree.

A target W [outputs, inputs] becomes W + scale * B A with A [rank, inputs] random and B [outputs, rank] zero. Passes run
on the sum, made anew in each: the learner's log-probs are those of the weights that it publishes, and every decoder and
engine stays as it is. Sums of gradients and the optimizer are of A and B alone.

Adapters lie in a tree of their own whose paths are PEFT's names: `<module>.lora_A.weight`, `<module>.lora_B.weight`.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from models.layers import PRECISION
from models.pure import Params, flatten, nest
from models.sharding import ALONE, Placement
from schemas.errors import RequestError
from schemas.lora import LoRA
from trainer.step import WHOLE, Frozen

_A, _B, _WEIGHT = ".lora_A.weight", ".lora_B.weight", ".weight"


def adapted(shapes: Mapping[str, tuple[int, ...]], lora: LoRA) -> tuple[str, ...]:
    """The modules that get an adapter, sorted. `shapes`: of the model's tensors, by name.

    RequestError where a target matches nothing or the rank is not low.
    """
    modules = sorted(_adaptable(shapes))
    found = {target: [m for m in modules if _matches(m, target)] for target in lora.targets}
    for target, matched in found.items():
        if not matched:
            raise RequestError(
                f"lora.targets: `{target}` matches no matrix of this model: it has {', '.join(_ends(modules))}"
            )
    chosen = tuple(sorted({m for matched in found.values() for m in matched}))
    for module in chosen:
        sides = shapes[module + _WEIGHT]
        if lora.rank >= min(sides):
            raise RequestError(
                f"lora.rank = {lora.rank} is not low for {module}, which is {sides[0]} x {sides[1]}: choose a rank "
                f"below {min(sides)}, or leave this target out"
            )
    return chosen


def _adaptable(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Matrices that multiply: an embedding's rows are looked up, and may be the output head as well."""
    matrices = [n.removesuffix(_WEIGHT) for n, shape in shapes.items() if n.endswith(_WEIGHT) and len(shape) == 2]
    return [m for m in matrices if not m.endswith("embed_tokens")]


def _matches(module: str, target: str) -> bool:
    return fnmatchcase(module, target) or fnmatchcase(module, f"*.{target}")


def _ends(modules: list[str]) -> list[str]:
    return sorted({m.rpartition(".")[2] for m in modules})


def init_adapters(shapes: Mapping[str, tuple[int, ...]], lora: LoRA, seed: int) -> Params:
    """Fresh float32 adapters: A uniform within 1 / sqrt(inputs), as PEFT has it, and B zero."""
    out: dict[str, jax.Array] = {}
    for number, module in enumerate(adapted(shapes, lora)):
        outputs, inputs = shapes[module + _WEIGHT]
        key, bound = jax.random.fold_in(jax.random.key(seed), number), inputs**-0.5
        out[module + _A] = jax.random.uniform(key, (lora.rank, inputs), jnp.float32, -bound, bound)
        out[module + _B] = jnp.zeros((outputs, lora.rank), jnp.float32)
    return nest(out)


def merged(adapters: Params, base: Params, scale: float) -> Params:
    """All parameters: those of `base`, with the adapters added to their targets."""
    parts, flat = flatten(adapters), flatten(base)
    for name in [n for n in parts if n.endswith(_A)]:
        module = name.removesuffix(_A)
        product = jnp.matmul(parts[module + _B], parts[name], precision=PRECISION)
        flat[module + _WEIGHT] = flat[module + _WEIGHT] + scale * product
    return nest(flat)


def freeze(lora: LoRA | None, params: Params, seed: int, placement: Placement = ALONE) -> tuple[Params, Frozen]:
    """What a stage that starts from `params` trains, and what stays; without `lora` all of it is trained."""
    if lora is None:
        return placement.fresh(params), WHOLE
    base: Any = placement.placed(jax.tree.map(jnp.asarray, params))
    shapes = {name: tuple(value.shape) for name, value in flatten(base).items()}
    return init_adapters(shapes, lora, seed), Frozen(base, jax.jit(partial(merged, scale=lora.scale)))
