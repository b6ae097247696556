"""Orders from the first process of a learner to its others, over the devices' own network.

An order is a small JSON object; all processes come together to exchange it. The first one says so in every wait of its
own, so that those that listen know that it lives.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils

from schemas.errors import PartnerLost
from trainer.shared_updater import Order

_HEAD = 4096
"""Bytes of the first exchange, which is the only one for most orders."""
_SIGNS = ("Gloo", "NCCL", "UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED")
"""What JAX's errors say where a connection to another process is gone."""


def join(process: int, processes: int, address: str, devices: int, seconds: float) -> None:
    """Become a process of a learner, before JAX is used. `address`: HOST:PORT where the first one listens. `devices`:
    of each process, where they are an accelerator's. PartnerLost if the others don't come within the seconds."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with partners():
        jax.distributed.initialize(
            address,
            processes,
            process,
            local_device_ids=list(range(process * devices, (process + 1) * devices)),
            initialization_timeout=int(seconds),
            coordinator_bind_address=address,
        )


def leave() -> None:
    """Part from the other processes, which all do so now."""
    with partners():
        jax.distributed.shutdown()


def say(order: Order) -> None:
    """Give an order to the other processes, which all listen."""
    text = json.dumps(order).encode()
    data = np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8)
    _exchange(_padded(data[:_HEAD], _HEAD))
    if len(data) > _HEAD:
        _exchange(_padded(data[_HEAD:], _size(len(data) - _HEAD)))


def hear() -> Order:
    """The next order. Waits for it; PartnerLost if nobody is left to give one."""
    data = _exchange(np.zeros(_HEAD, np.uint8))
    length = int.from_bytes(data[:8].tobytes(), "little")
    if 8 + length > _HEAD:
        data = np.concatenate([data, _exchange(np.zeros(_size(8 + length - _HEAD), np.uint8))])
    return json.loads(data[8 : 8 + length].tobytes())


@contextmanager
def partners() -> Generator[None]:
    """Work that all processes do together: PartnerLost where one of them is gone."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not any(sign in str(error) for sign in _SIGNS):
            raise
        first = str(error).splitlines()[0]
        raise PartnerLost(f"another process of this learner is gone ({first}): start all of them again") from error


def _exchange(data: np.ndarray) -> np.ndarray:
    with partners():
        return np.asarray(multihost_utils.broadcast_one_to_all(data))


def _padded(data: np.ndarray, size: int) -> np.ndarray:
    return np.pad(data, (0, size - len(data)))


def _size(count: int) -> int:
    """A power of two: a program is compiled for each size."""
    return 1 << max(count - 1, _HEAD).bit_length()
