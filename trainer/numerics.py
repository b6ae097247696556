"""What decides the bytes of a computation on this machine, and the cores it is bound to."""

import contextlib
import os
from collections.abc import Sequence

from schemas.errors import RequestError
from schemas.manifest import Numerics
from schemas.mesh import Mesh


def bind_cores(cores: Sequence[int]) -> None:
    """Bind this process to processor cores, before JAX starts its threads; nothing where the list is empty.

    RequestError where a core is not there or not ours.
    """
    if not cores or not hasattr(os, "sched_setaffinity"):
        return
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError, ValueError):
        os.sched_setaffinity(0, cores)
    # The kernel drops cores that are not there without a word, which would change the bytes.
    if os.sched_getaffinity(0) != set(cores):
        raise RequestError(f"rl.cores = {list(cores)} can't all be used here: usable are {sorted(before)}")


def numerics(mesh: Mesh) -> Numerics:
    """The environment as it is now. Another mesh, or another number of usable cores on CPU, gives other bytes."""
    import jax
    import jaxlib

    devices = jax.devices()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Numerics(
        jax=jax.__version__,
        jaxlib=jaxlib.__version__,
        xla_flags=os.environ.get("XLA_FLAGS", ""),
        device_kind=devices[0].device_kind,
        device_count=len(devices),
        cores=usable,
        mesh=(mesh.data, mesh.fsdp, mesh.tensor),
        processes=jax.process_count(),
    )
