"""What a worker that joined from elsewhere can see of its run: whether there is work, and whether anybody drives it.

Everything is read from the store. The driver's silence is measured on our own clock, by its lease.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from schemas import config_text, keys
from schemas.config import Run
from schemas.manifest import Lease, RLSpec
from storage.control import read_window
from storage.documents import read_document
from storage.objects import ObjectStore, find
from tasks.record import existing_run, newest_rl

LOOK_READS = 4
"""Objects that one look reads: the run, its RL stage, the window and the lease."""
Phase = Literal["waiting", "open", "over", "moved"]


@dataclass(frozen=True)
class Sight:
    """One look at a run."""

    phase: Phase
    """`waiting`: RL has not opened its window (yet, or again); `open`: there is work; `over`: RL has ended;
    `moved`: the run works on another RL stage than the one that was asked for."""
    base: str
    """The folder of the stage; empty before the run has one."""
    spec: RLSpec | None
    silent: float
    """Seconds for which nobody has been seen to drive the run."""
    config: Run


class RunWatch:
    """Looks at one run. `base`: the stage that is asked for; empty: the run's newest."""

    def __init__(
        self, store: ObjectStore, run: str, base: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._run, self._base, self._clock = store, run, base, clock
        self._lease, self._heard = -1, clock()

    def look(self) -> Sight:
        """Read everything once. RequestError if there is no such run."""
        manifest = existing_run(self._store, self._run)
        config = config_text.check(manifest.config, keys.run_manifest(self._run))
        base = newest_rl(manifest)
        spec = self._spec(base)
        return Sight(self._phase(base, spec, config), base, spec, self._silence(), config)

    def _spec(self, base: str) -> RLSpec | None:
        return read_document(self._store, RLSpec, keys.spec(base)) if base else None

    def _phase(self, base: str, spec: RLSpec | None, config: Run) -> Phase:
        """A window that was closed before the configured steps is opened again by the learner that continues."""
        if self._base and base != self._base:
            return "moved"
        found = read_window(self._store, base) if spec else None
        if found is None:
            return "waiting"
        window, _ = found
        if not window.closed:
            return "open"
        return "over" if window.step >= config.rl.steps else "waiting"

    def _silence(self) -> float:
        key = keys.run_lease(self._run)
        stored, now = find(self._store, key), self._clock()
        if stored is not None and stored.generation != self._lease:
            self._lease = stored.generation
            if not Lease.from_bytes(stored.data, key).released:
                self._heard = now
        return now - self._heard
