"""The working loop of a worker: look at the window, follow the policy, claim, play, seal.

Nothing starts unless the engine has at least the version of the window that was last read; nothing goes on whose group
has ended.
"""

import asyncio
from collections.abc import Callable, Sequence

from rollout.claims import Assignment, ClaimBoard, has_ended
from rollout.counters import Counters
from rollout.episode import Job
from rollout.orchestrator import RolloutOrchestrator
from rollout.policy import PolicyFollower
from rollout.quarantine import Quarantine
from rollout.sealer import Sealer
from rollout.window_watch import WindowWatch
from schemas import seeds
from schemas.config import Run
from schemas.data import Task
from schemas.manifest import Window
from storage.shards import WriterEnded

AT_ONCE = 8
"""Groups claimed one after the other before their episodes begin."""


class Shift:
    """Plays until the window closes, the run ends without this worker, or `stop` says so."""

    def __init__(
        self,
        watch: WindowWatch,
        board: ClaimBoard,
        follower: PolicyFollower,
        orchestrator: RolloutOrchestrator,
        sealer: Sealer,
        counters: Counters,
        quarantine: Quarantine,
        config: Run,
        tasks: Sequence[Task],
        seed: int,
        stop: Callable[[], bool],
    ) -> None:
        self._watch, self._board, self._follower = watch, board, follower
        self._orchestrator, self._sealer, self._counters = orchestrator, sealer, counters
        self._quarantine, self._attempts = quarantine, config.rollout.attempts
        self._group_size = config.rl.group_size
        self._tasks, self._seed, self._stop = tasks, seed, stop
        self._alone = -1
        """The group beside which nothing may be played."""

    async def work(self) -> None:
        """The loop. Whatever ends it, what is finished is sealed and what is not is counted as abandoned."""
        try:
            while not self._stop() and await self._round():
                pass
        except WriterEnded:
            return
        finally:
            await self._end()

    async def _round(self) -> bool:
        """One look at everything; False when the window has closed."""
        if await self._watch.look():
            await self._heed_window()
        window = self._watch.window
        if window is None or window.closed:
            return window is None
        await self._start_episodes(window)
        idle = not self._orchestrator.in_flight and not self._orchestrator.queued
        self._sealer.poll(idle=idle)
        await self._orchestrator.wait(self._watch.due_in)
        self._counters.passed(self._orchestrator.in_flight)
        if self._quarantine.due:
            await asyncio.to_thread(self._quarantine.write)
        return True

    async def _heed_window(self) -> None:
        window = self._watch.window
        assert window is not None  # it was just read
        self._counters.abandoned += await self._orchestrator.cancel(lambda job: has_ended(window, job.group))
        self._quarantine.forget(lambda group: has_ended(window, group))
        await asyncio.to_thread(self._board.watch, window, self._orchestrator.groups)

    async def _start_episodes(self, window: Window) -> None:
        with self._sealer.holding():
            current = await self._follower.follow(window.version, self._orchestrator.in_flight)
        if not current or self._follower.draining:
            return
        while self._orchestrator.places and self._alone not in self._orchestrator.groups:
            idle = not self._orchestrator.groups and not self._sealer.unsealed
            wanted = min(AT_ONCE, -(-self._orchestrator.places // self._group_size))
            found = await asyncio.to_thread(self._some, window, idle, wanted)
            for assignment, refused in found:
                self._alone = assignment.group if assignment.alone else -1
                self._counters.takeovers += assignment.first_attempt > 0
                self._orchestrator.submit(self._jobs(assignment, refused))
            self._orchestrator.fill()  # they play while more is claimed
            if not found:
                break
        self._orchestrator.fill()

    def _some(self, window: Window, idle: bool, wanted: int) -> list[tuple[Assignment, str]]:
        """As many groups as are wanted and there; a group that is played alone comes alone."""
        found: list[tuple[Assignment, str]] = []
        while len(found) < wanted and not (found and found[-1][0].alone):
            another = self._next(window, idle and not found)
            if another is None:
                break
            found.append(another)
        return found

    def _next(self, window: Window, idle: bool) -> tuple[Assignment, str] | None:
        """A group to play, and why it is not to be played after all. Asks the store: call it in a thread."""
        assignment = self._board.next(window, idle=idle)
        if assignment is None:
            return None
        task = self._task(assignment.group)
        if assignment.deadly:
            self._quarantine.condemn(task, assignment.deadly)
        return assignment, self._quarantine.reason(task)

    def _task(self, group: int) -> int:
        return seeds.task_index(self._seed, len(self._tasks), group)

    def _jobs(self, assignment: Assignment, refused: str) -> list[Job]:
        """A sample that is not played has its last attempt behind it."""
        number = self._task(assignment.group)
        if not (refused or assignment.first_attempt):
            self._quarantine.plays(assignment.group, number, assignment.samples)
        attempt = assignment.first_attempt + (self._attempts - 1 if refused else 0)
        return [Job(assignment.group, s, attempt, self._tasks[number], refused) for s in assignment.samples]

    async def _end(self) -> None:
        try:
            self._counters.abandoned += await self._orchestrator.cancel(lambda _: True)
        finally:
            await self._seal_the_rest()
            await self._follower.close()

    async def _seal_the_rest(self) -> None:
        try:
            await self._sealer.flush()
        except WriterEnded:
            pass
        finally:
            self._counters.abandoned += self._sealer.unsealed
