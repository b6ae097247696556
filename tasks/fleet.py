"""Workers of a run on other machines: asked for by name, watched from afar, replaced when they are lost.

Prefect says what became of a flow run; only the store says whether its worker is at work. A worker that a person has
cancelled is not replaced: anybody may want fewer of them. A task may be what crashes them, machine and all: once it is
found out, the crashes so far are forgiven, as `tasks.supervise` does.
"""

import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from schemas.config import Run
from schemas.errors import RunStopped
from storage import control
from storage.objects import ObjectStore
from storage.quarantine import deadly
from tasks.children import Event
from tasks.supervise import WORKERS, Restarts, alike
from tasks.worker_pool import Asked, PoolUnreachable, WorkerPool

RESTARTS = replace(WORKERS, pause=1.0, longest_pause=60.0)
ALIKE = 3
"""When every worker has failed so often in a row for one cause, and nobody is at work, more of it would only spin.
Of crashes, which may be a task's, `Restarts.alike`."""
_INDEX = re.compile(r"w(\d+)-")


@dataclass
class Post:
    """One worker that the run wants. Times are of the fleet's clock."""

    index: int
    due: float
    """When to ask for it."""
    asked: Asked | None = None
    attempt: int = 0
    since: float = 0.0
    """When it was asked for."""
    heard: float = 0.0
    """When its worker last beat; at first, when it was asked for."""
    failures: int = 0
    cause: str = ""
    """Why the last flow run ended."""
    alike: int = 0
    """Flow runs in a row that ended for this cause."""
    crashed: bool = False
    """Whether the last one ended without a cause of its own."""
    left: bool = False
    """It is not asked for any more."""


class Fleet:
    """The workers of one RL stage. `round` is called every few seconds, `leave` at the end."""

    def __init__(
        self,
        store: ObjectStore,
        base: str,
        run: str,
        config: Run,
        pool: WorkerPool,
        tell: Callable[[str, Event], None],
        *,
        restarts: Restarts = RESTARTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._base, self._run, self._pool, self._tell = store, base, run, pool, tell
        self._restarts, self._clock = restarts, clock
        self._patience = config.rollout.join_seconds
        self._lease = config.rollout.lease_seconds
        self._leases = control.LeaseWatch(self._lease, clock)
        self._looked, self._at_work = float("-inf"), set[int]()
        self._gone: set[int] = set()
        self._posts = [Post(index, clock()) for index in range(config.rollout.workers)]
        self._seen, self._cause = clock(), ""
        self._deadly = deadly(store, base)
        self._window: Literal["none", "open", "closed"] = "none"

    def round(self) -> None:
        """Look at everything once and mend what is broken. RunStopped once nobody is there for too long.

        PoolUnreachable where Prefect does not answer: nothing is lost by trying again later.
        """
        now, found = self._clock(), control.read_window(self._store, self._base)
        self._window = "none" if found is None else "closed" if found[0].closed else "open"
        if now - self._looked >= self._lease / 4:
            self._looked, self._at_work = now, set(self._beating())
        beating = self._at_work
        if beating or self._window != "open":
            self._seen = now
        for post in self._posts:
            if post.index in beating or self._window != "open":
                post.heard = now
        try:
            self._follow()
            self._ask()
            self._check(now)
        except PoolUnreachable:
            self._seen = now  # nobody can come while nobody can be asked for
            raise

    @property
    def asked(self) -> list[str]:
        """Ids of the flow runs that may still be at work."""
        return [p.asked.id for p in self._posts if p.asked is not None and not p.asked.final]

    def leave(self) -> None:
        """Cancel what is still at work, also what a driver before this one asked for."""
        for asked in self._pool.standing():
            if asked.state != "CANCELLING":
                self._pool.cancel(asked.id)

    def gone(self) -> bool:
        """Whether every flow run has ended."""
        return not self._pool.standing()

    # -- the store's side -------------------------------------------------------------------------------------

    def _beating(self) -> Iterator[int]:
        """Index of every worker whose heartbeat moves; -1 for one that is numbered in a way of its own."""
        for number in itertools.count():
            if number in self._gone:
                continue
            found = control.read_worker(self._store, self._base, number)
            if found is None:
                return
            state, generation = found
            if state.state == "left":
                self._gone.add(number)
            elif self._leases.alive(state.worker, generation):
                match = _INDEX.match(state.worker)
                yield int(match[1]) if match else -1

    # -- Prefect's side ---------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Learn what became of the flow runs, and note which are to be asked for again."""
        found = self._pool.look(self.asked)
        for post in self._posts:
            if post.asked is not None and not post.asked.final:
                post.asked = found.get(post.asked.id) or Asked(post.asked.id, "CANCELLED", "was deleted")
                self._judge(post, post.asked)

    def _judge(self, post: Post, asked: Asked) -> None:
        now = self._clock()
        if asked.state in ("CANCELLED", "CANCELLING"):
            post.left = True
            self._say(post, "its flow run was cancelled: the run goes on without it")
        elif asked.state == "COMPLETED" and self._window == "closed":
            post.asked, post.due = None, now
        elif asked.final:
            cause = asked.message or f"its flow run ended as {asked.state}"
            self._failed(post, cause, crashed=asked.state == "CRASHED")
        elif asked.state in ("PENDING", "RUNNING") and now - post.heard > self._patience:
            self._pool.cancel(asked.id)
            self._failed(post, f"its flow run is {asked.state}, but nothing was heard of it for {self._patience:g} s")

    def _failed(self, post: Post, cause: str, *, crashed: bool = False) -> None:
        now = self._clock()
        self._forgive()
        if now - post.since > self._restarts.healthy and post.heard > post.since:
            post.failures = 0
        post.failures += 1
        post.alike = post.alike + 1 if alike(cause, post.cause) else 1
        post.asked, post.cause, post.crashed, self._cause = None, cause, crashed, cause
        if post.failures > self._restarts.limit:
            post.left = True
            self._say(post, f"{cause}; it has failed {post.failures} times and is not asked for again")
            return
        pause = min(self._restarts.pause * 2 ** (post.failures - 1), self._restarts.longest_pause)
        post.due = now + pause
        self._say(post, f"{cause}; asking for another in {pause:g} s")

    def _forgive(self) -> None:
        """Where another task is known to end workers, their failures so far have led somewhere."""
        found = deadly(self._store, self._base)
        if found != self._deadly:
            self._deadly = found
            for post in self._posts:
                post.failures, post.alike, post.cause = 0, 0, ""

    def _ask(self) -> None:
        """Ask for whoever is due. A flow run that a driver before this one has asked for, and that lives, is it."""
        now = self._clock()
        for post in self._posts:
            if post.asked is not None or post.left or now < post.due or self._window == "closed":
                continue
            post.asked = self._ask_for(post)
            post.since = post.heard = self._clock()
            self._say(post, f"asked for (flow run {post.asked.id})")

    def _ask_for(self, post: Post) -> Asked:
        parameters = {"root": self._store.url, "run": self._run, "base": self._base, "first": post.index}
        while True:
            name = f"{self._run} worker {post.index}.{post.attempt}"
            asked = self._pool.ask(name, f"{post.index} {post.attempt}", parameters)
            if not asked.final and asked.state != "CANCELLING":
                return asked
            post.attempt += 1

    def _check(self, now: float) -> None:
        """RunStopped where nobody is at work, and either nobody will come or nobody came in time."""
        if now == self._seen:
            return
        last = f"; the last that ended: {self._cause}" if self._cause else ""
        if all(p.left for p in self._posts) and self._cause:
            raise RunStopped(f"no worker of run {self._run} is left{last}")
        if all(p.left or p.alike >= self._most_alike(p) for p in self._posts) and self._cause:
            times = min(p.alike for p in self._posts if not p.left)
            raise RunStopped(f"every worker of run {self._run} fails, {times} times in a row with: {self._cause}")
        if now - self._seen > self._patience:
            raise RunStopped(
                f"no worker has joined run {self._run} for {self._patience:g} s: {self._pool.hint()}{last}"
            )

    def _most_alike(self, post: Post) -> int:
        return self._restarts.alike if post.crashed else ALIKE

    def _say(self, post: Post, message: str) -> None:
        self._tell(f"worker-{post.index}", {"event": "log", "message": message})
