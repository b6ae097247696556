"""An episode that a program plays: it is given an address, asks the policy there as it likes, and is scored.

Whatever goes wrong in the program or the engine ends this episode with a status and its cause, and nothing else. What
was sampled until then is kept.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from rollout.cast import Cast
from rollout.collect import TrajectoryCollectEngine, cause
from rollout.endpoint import Endpoint
from rollout.engine import Engine
from rollout.episode import Episode, EpisodeEnded, plain
from rollout.formats import ChatFormats
from rollout.hooks import call, leave_behind
from rollout.program_line import Limits, Line
from rollout.programs import Address, ProgramEnvironment
from schemas.config import Run
from schemas.errors import RunStopped
from schemas.messages import Message
from schemas.trajectory import Status


class ProgramPlayer(TrajectoryCollectEngine):
    """Plays episodes of a `ProgramEnvironment`, whose requests come in at an endpoint."""

    def __init__(
        self,
        engine: Engine,
        formats: ChatFormats,
        cast: Cast,
        config: Run,
        endpoint: Endpoint,
        *,
        run: str,
        seed: int,
        worker: str,
        temperature: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        names: dict[str, Any] = {"run": run, "seed": seed, "worker": worker, "temperature": temperature}
        super().__init__(engine, formats.of(cast.tool_specs), cast, config, clock=clock, **names)
        self._config, self._formats, self._endpoint = config, formats, endpoint

    async def _play(self, episode: Episode, session: str) -> None:
        env: Any = await self._environment(episode.job)
        await self._until_closed(episode, env, self._run_program(episode, env, session))

    async def _run_program(self, episode: Episode, env: ProgramEnvironment, session: str) -> None:
        limits = Limits.of(self._config, env.model, self._temperature)
        line = Line(session, self._engine, self._formats, limits, lambda n: self._request_seed(episode.job, n))
        url, token = self._endpoint.open(line)
        try:
            answer = await self._acted(env, Address(url, token, env.model), line)
        finally:
            self._endpoint.close(token)
            _record(episode, line)
        if not episode.turns:
            raise EpisodeEnded(Status.ENVIRONMENT_ERROR, "the program ended without an answer of the model")
        if answer and answer != episode.said[-1].content:
            episode.said = (*episode.said, Message("assistant", answer))
        await self._score(episode, env)

    async def _acted(self, env: ProgramEnvironment, address: Address, line: Line) -> str:
        """The program's answer, "" for none, unless it fails or its line ends the episode."""
        acting = asyncio.ensure_future(call(env.act, address))
        over = asyncio.ensure_future(line.over.wait())
        try:
            await asyncio.wait({acting, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            if not acting.done():
                leave_behind(acting)
        if line.fatal is not None:
            raise line.fatal
        if line.end is not None:
            raise line.end
        if acting.cancelled():
            raise EpisodeEnded(Status.ENVIRONMENT_ERROR, "the program was cancelled from within")
        if (error := acting.exception()) is not None:
            raise _failed(error, line)
        return self._checked(acting.result())

    def _checked(self, answer: object) -> str:
        limit = self._limits.max_observation
        if answer is None:
            return ""
        if not isinstance(answer, str):
            kind = type(answer).__name__
            raise EpisodeEnded(Status.ENVIRONMENT_ERROR, f"the program returned {kind}, not its answer as text or None")
        if len(answer) > limit:
            raise EpisodeEnded(
                Status.FLOODED,
                f"the program returned {len(answer)} characters, environment.max_observation is {limit}",
            )
        return plain(answer)


def _record(episode: Episode, line: Line) -> None:
    """Put what the line has recorded into the episode."""
    joined = line.segments.joined()
    episode.stream, episode.segment_starts = joined.stream, joined.starts
    episode.turns, episode.asked = joined.turns, tuple(joined.asked)
    last = line.segments.last
    episode.said = tuple(last.messages) if last else ()


def _failed(error: BaseException, line: Line) -> BaseException:
    """How an episode ends whose program raised this. One that ran out of room may well fail of that."""
    if isinstance(error, RunStopped):
        return error
    if line.full:
        return EpisodeEnded(Status.MAX_CONTEXT, line.full)
    return EpisodeEnded(Status.ENVIRONMENT_ERROR, cause("the program", error))
