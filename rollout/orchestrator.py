"""Many episodes at once on one event loop: a bounded number in flight, failed samples tried again, nothing lost.

Every started episode ends in a trajectory that is handed on, or in its cancellation, which is counted. An exception
that is no episode's own (a bug, a stop) surfaces from `wait`. When everything fails, that is said at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from rollout.episode import Job
from rollout.failures import FailureStreak
from schemas.trajectory import Trajectory


class RolloutOrchestrator:
    """Plays jobs with `collect`, at most `max_concurrency` at once; each finished attempt goes to `deliver`."""

    def __init__(
        self,
        collect: Callable[[Job], Coroutine[Any, Any, Trajectory]],
        deliver: Callable[[Trajectory], None],
        *,
        max_concurrency: int,
        attempts: int,
    ) -> None:
        self._collect, self._deliver = collect, deliver
        self._places, self._attempts = max_concurrency, attempts
        self._queue: deque[Job] = deque()
        self._running: dict[asyncio.Task[Trajectory], Job] = {}
        self._finished: deque[asyncio.Task[Trajectory]] = deque()
        self._news = asyncio.Event()
        self._streak = FailureStreak()

    @property
    def in_flight(self) -> int:
        """Episodes that run."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Jobs that wait for a place."""
        return len(self._queue)

    @property
    def groups(self) -> set[int]:
        """The groups of which jobs run or wait."""
        return {job.group for job in (*self._running.values(), *self._queue)}

    @property
    def places(self) -> int:
        """How many more jobs could run at once."""
        return max(0, self._places - len(self._running) - len(self._queue))

    def submit(self, jobs: Iterable[Job]) -> None:
        """Queue jobs; `fill` starts them."""
        self._queue.extend(jobs)

    def fill(self) -> None:
        """Start queued jobs while there are places."""
        while self._queue and len(self._running) < self._places:
            job = self._queue.popleft()
            task = asyncio.ensure_future(self._collect(job))
            self._running[task] = job
            task.add_done_callback(self._ended)

    def wake(self) -> None:
        """End the current or next `wait` early."""
        self._news.set()

    def _ended(self, task: asyncio.Task[Trajectory]) -> None:
        self._finished.append(task)
        self._news.set()

    async def wait(self, seconds: float) -> int:
        """Wait until an episode ends, or for so long; deliver what ended and queue its retries. Returns how many.

        RunStopped when everything fails.
        """
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            return 0
        count = self._take()
        self._streak.check()
        return count

    def _take(self) -> int:
        """Deliver every episode that has ended, then raise what was no episode's own."""
        self._news.clear()
        ended = [(self._running.pop(t, None), t) for t in self._finished if not t.cancelled()]
        self._finished.clear()
        errors = [e for _, task in ended if (e := task.exception()) is not None]
        rows = [(job, task.result()) for job, task in ended if job is not None and task.exception() is None]
        for job, row in rows:
            self._settle(job, row)
        if errors:
            raise errors[0]
        return len(rows)

    def _settle(self, job: Job, row: Trajectory) -> None:
        self._deliver(row)
        self._streak.note(row)
        if row.failed and job.attempt % self._attempts < self._attempts - 1:
            self._queue.appendleft(job.next_attempt())

    async def cancel(self, unwanted: Callable[[Job], bool]) -> int:
        """Give up the queued and running jobs for which `unwanted` holds; returns how many were running.

        Episodes that have ended already are delivered, not cancelled.
        """
        self._take()
        self._queue = deque(j for j in self._queue if not unwanted(j))
        tasks = [t for t, j in self._running.items() if unwanted(j)]
        for task in tasks:
            del self._running[task]
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._take()
        return len(tasks)

    async def run(self, jobs: Iterable[Job], pause: Callable[[], bool] = lambda: False) -> None:
        """Play all jobs to their end, or until `pause` says so."""
        source = iter(jobs)
        more = True
        while not pause() and (more or self._queue or self._running):
            while more and self.places:
                job = next(source, None)
                more = job is not None
                self.submit([job] if job else [])
            self.fill()
            await self.wait(0.5)
