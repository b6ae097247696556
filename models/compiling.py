"""Compilations of JAX's, announced to the supervisor as they happen: whatever is compiled, and whenever."""

import threading
from typing import Any

import jax

from storage.pulse import Work

_EVENTS = frozenset(
    {
        "/jax/core/compile/jaxpr_trace_duration",
        "/jax/core/compile/jaxpr_to_mlir_module_duration",
        "/jax/core/compile/backend_compile_duration",
    }
)


def announce_compilations(seconds: float) -> None:
    """Announce every compilation of this process, each of at most `seconds`. JAX tells when one begins and ends."""
    compilations = _Compilations(seconds)
    jax.monitoring.register_scalar_listener(compilations.begun)
    jax.monitoring.register_event_duration_secs_listener(compilations.ended)


class _Compilations(threading.local):
    """Those of one thread. Tracing, lowering and compiling may nest; the outermost one is announced."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._depth = seconds, 0
        self._work: Work | None = None

    def begun(self, event: str, value: float | int, **_: Any) -> None:
        if event in _EVENTS:
            self._work = self._work or Work("compiling", self._seconds)
            self._depth += 1

    def ended(self, event: str, duration_secs: float, **_: Any) -> None:
        if event in _EVENTS and self._depth:
            self._depth -= 1
            if not self._depth and self._work is not None:
                self._work.done()
                self._work = None
