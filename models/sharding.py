"""Which device holds what: a table from tensors to logical axes, and one from logical axes to those of the mesh.

Parameters, whatever has their names (gradients, the optimizer's moments) and micro-batches are placed by it; how a step
is then computed in parts, and what devices tell each other, XLA derives (GSPMD, Xu et al., 2021, arXiv:2105.04663).

The devices may belong to several processes of one learner. Each then makes the same calls in the same order, with the
same values on the host, and puts in place what its own devices hold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from models.pure import Params
from schemas.errors import RequestError
from schemas.mesh import Mesh

Tree = TypeVar("Tree")

MESH_AXES: dict[str, tuple[str, ...]] = {
    "rows": ("data", "fsdp"),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "vocab": ("tensor",),
    "rank": (),
}
"""Logical axis → the axes of the mesh that cut it."""

LOGICAL_AXES: dict[str, tuple[str, ...]] = {
    "embed_tokens.weight": ("vocab", "embed"),
    "lm_head.weight": ("vocab", "embed"),
    "q_proj.weight": ("heads", "embed"),
    "k_proj.weight": ("kv_heads", "embed"),
    "v_proj.weight": ("kv_heads", "embed"),
    "o_proj.weight": ("embed", "heads"),
    "q_proj.bias": ("heads",),
    "k_proj.bias": ("kv_heads",),
    "v_proj.bias": ("kv_heads",),
    "gate_proj.weight": ("mlp", "embed"),
    "up_proj.weight": ("mlp", "embed"),
    "down_proj.weight": ("embed", "mlp"),
}
"""The end of a tensor's name → its logical axes. Norms, and whatever has no line, are whole on every device."""


def logical_axes(name: str) -> tuple[str, ...]:
    """The logical axes of the tensor of this name. An adapter has the sides of its target: of A [rank, inputs] the
    inputs are cut as the target's, of B [outputs, rank] the outputs, so that B A is cut as what it is added to."""
    *_, module, kind, last = ["", "", *name.split(".")]
    if kind not in ("lora_A", "lora_B"):
        return LOGICAL_AXES.get(f"{kind}.{last}", ())
    target = LOGICAL_AXES.get(f"{module}.{last}", ())
    return target and (("rank", target[1]) if kind == "lora_A" else (target[0], "rank"))


def partition(
    name: str, shape: Sequence[int], mesh: jax.sharding.Mesh | AbstractMesh, *, gathered: bool = False
) -> PartitionSpec:
    """How the mesh cuts the tensor of this name; `gathered`: not along its hidden size.

    An axis that does not divide stays whole: only vocabularies may be like that, since a mesh that does not divide the
    rest is refused (`trainer.mesh_fit`).
    """
    logical = logical_axes(name)
    if len(logical) != len(shape):
        return PartitionSpec()
    cut = (None if gathered and a == "embed" else _cut(a, n, mesh) for a, n in zip(logical, shape, strict=True))
    return PartitionSpec(*cut)


def _cut(axis: str, size: int, mesh: jax.sharding.Mesh | AbstractMesh) -> tuple[str, ...] | None:
    """The axes of the mesh that cut `size` entries of a logical axis; None where it stays whole."""
    taken = tuple(name for name in MESH_AXES[axis] if mesh.shape[name] > 1)
    parts = 1
    for name in taken:
        parts *= mesh.shape[name]
    return taken if taken and size % parts == 0 else None


def shardings(tree: Any, mesh: jax.sharding.Mesh, *, gathered: bool = False) -> Any:
    """A tree like `tree`, of arrays, with each one's sharding. Names are paths, so a tree that has the parameters
    somewhere inside it (an optimizer's state) is cut as they are."""

    def of(path: tuple, x: Any) -> NamedSharding:
        return NamedSharding(mesh, partition(_name(path), x.shape, mesh, gathered=gathered))

    return jax.tree.map_with_path(of, tree)


def row_shardings(tree: Any, mesh: jax.sharding.Mesh) -> Any:
    """The same for a micro-batch, whose arrays are cut along their first axis."""
    return jax.tree.map(lambda x: NamedSharding(mesh, PartitionSpec(_cut("rows", len(x), mesh))), tree)


def _name(path: tuple) -> str:
    return ".".join(str(getattr(key, "key", getattr(key, "name", ""))) for key in path)


@dataclass(frozen=True)
class Placement:
    """Where arrays of training go. Without a mesh they stay as they are, on the first device."""

    mesh: jax.sharding.Mesh | None = None

    @property
    def shared(self) -> bool:
        """Whether devices of other processes take part: arrays can't be read as they lie."""
        return self.mesh is not None and self.mesh.is_multi_process

    def fresh(self, params: Params) -> Params:
        """Float32 copies on the devices, which a step may write over."""
        if self.mesh is None:
            return jax.tree.map(jnp.array, params)
        return self._put(params, shardings(params, self.mesh), may_alias=False)

    def placed(self, tree: Tree) -> Tree:
        """A state whose every array lies where its name says."""
        return tree if self.mesh is None else self._put(tree, shardings(tree, self.mesh))

    def readable(self, tree: Any) -> Any:
        """The tree with arrays that this process can read: whole copies where they are shared with others, which must
        all make this call."""
        if self.mesh is None or not self.shared:
            return tree
        whole = _whole(self.mesh)
        return jax.tree.map(lambda x: np.asarray(whole(x)), tree)

    def kept(self, tree: Tree) -> Tree:
        """Inside a jitted function: a result whose arrays stay where their names say."""
        return tree if self.mesh is None else jax.lax.with_sharding_constraint(tree, shardings(tree, self.mesh))

    def gathered(self, params: Tree) -> Tree:
        """Inside a jitted function: parameters as a pass takes them, whole along the hidden size. Rows are cut by the
        same axis of the mesh, and left to itself the compiler would move activations to the weights."""
        if self.mesh is None:
            return params
        return jax.lax.with_sharding_constraint(params, shardings(params, self.mesh, gathered=True))

    def dealt(self, batch: Tree) -> Tree:
        """A micro-batch with its rows dealt to the devices."""
        return batch if self.mesh is None else self._put(batch, row_shardings(batch, self.mesh))

    def _put(self, tree: Any, where: Any, may_alias: bool | None = None) -> Any:
        """A tree's arrays on the devices. Where processes share them each puts down its own part: `device_put` would
        have them compare the values first."""
        if not self.shared:
            return jax.device_put(tree, where, may_alias=may_alias)
        return jax.tree.map(_put_part, tree, where)


def _put_part(x: Any, where: NamedSharding) -> jax.Array:
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.device_put(x, where)
    value = np.asarray(x)
    return jax.make_array_from_callback(value.shape, where, lambda index: np.array(value[index]))


@cache
def _whole(mesh: jax.sharding.Mesh) -> Callable[[Any], jax.Array]:
    """Puts an array together on every device."""
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))


ALONE = Placement()
"""Everything on the first device."""


def placement(mesh: Mesh) -> Placement:
    """The placement on the first devices of this process; of a learner with several, on as many of each. RequestError
    where there are too few."""
    if mesh.devices == 1:
        return ALONE
    sizes, processes = mesh.model_dump(), jax.process_count()
    share = mesh.devices // processes
    devices = [d for process in range(processes) for d in jax.local_devices(process)[:share]]
    if len(devices) < mesh.devices:
        wanted = " x ".join(f"{name} {size}" for name, size in sizes.items())
        here = f"{len(devices)}" + (f" for its {processes} processes" if processes > 1 else "")
        raise RequestError(
            f"rl.mesh asks for {mesh.devices} devices ({wanted}), but the learner's machine has {here}: "
            f"make the mesh smaller, or learn where there are more"
        )
    axes = (AxisType.Auto,) * len(sizes)
    return Placement(jax.make_mesh(tuple(sizes.values()), tuple(sizes), axes, devices=devices))
