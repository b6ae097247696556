"""One episode from start to end: model and environment in turn, to one trajectory.

Whatever goes wrong in a hook or the engine ends this episode with a status and its cause, and nothing else.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from models.chat import ChatFormat
from rollout.agents import Action, ConversationAgentBase
from rollout.cast import Cast
from rollout.checks import checked_step, observed, scored
from rollout.engine import Completion, Engine, EngineUnfit, Request, Sampling
from rollout.environments import BaseTaskEnv, StepResult
from rollout.episode import Episode, EpisodeEnded, Job
from rollout.hooks import HookTimeout, call, detach, is_at_once, said, to_its_end, within
from rollout.making import holds, made, put_away
from rollout.rewards import Reward
from schemas import seeds
from schemas.config import Run
from schemas.errors import RunStopped
from schemas.messages import Message
from schemas.trajectory import Status, Trajectory

Checked = TypeVar("Checked")


class TrajectoryCollectEngine:
    """Plays episodes with one engine, chat format and cast; holds no state between them."""

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        cast: Cast,
        config: Run,
        *,
        run: str,
        seed: int,
        worker: str,
        temperature: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._chat, self._cast = engine, chat, cast
        self._limits, self._rollout = config.environment, config.rollout
        self._run, self._seed, self._worker, self._temperature = run, seed, worker, temperature
        self._clock = clock

    async def collect(self, job: Job) -> Trajectory:
        """The trajectory of one attempt, whatever became of it. Cancelling gives the episode up without one."""
        episode, session = Episode(job), f"{self._worker}/{job.id}"
        if job.refused:
            episode.ended(EpisodeEnded(Status.QUARANTINED, job.refused))
            return self._row(episode)
        try:
            async with asyncio.timeout(self._rollout.episode_seconds) as episode.deadline:
                await self._play(episode, session)
        except EpisodeEnded as end:
            episode.ended(end)
        except TimeoutError:
            detail = f"the episode took longer than rollout.episode_seconds = {self._rollout.episode_seconds:g}"
            episode.ended(EpisodeEnded(Status.TIMEOUT, detail))
        finally:
            self._engine.release(session)
        try:
            return self._row(episode)
        except Exception as error:  # what an agent or environment left in the conversation can't be kept
            episode.agent, episode.said = None, ()
            episode.ended(EpisodeEnded(Status.ENVIRONMENT_ERROR, cause("keeping the conversation", error)))
            return self._row(episode)

    def _row(self, episode: Episode) -> Trajectory:
        sampling = {
            "temperature": self._temperature,
            "top_p": self._rollout.top_p,
            "top_k": self._rollout.top_k,
            "stop": list(self._rollout.stop),
            "max_tokens_per_turn": self._rollout.max_tokens_per_turn,
            "max_length": self._rollout.max_length,
        }
        return episode.trajectory(
            run=self._run, worker=self._worker, seed=self._request_seed(episode.job, 0), sampling=sampling
        )

    def _request_seed(self, job: Job, turn: int) -> int:
        return seeds.request(self._seed, job.group, job.sample, job.attempt, turn)

    async def _play(self, episode: Episode, session: str) -> None:
        agent = episode.agent = await self._agent()
        env = await self._environment(episode.job)
        await self._until_closed(episode, env, self._converse(episode, agent, env, session))

    async def _environment(self, job: Job) -> BaseTaskEnv:
        making = made(self._cast, job.task, self._limits.step_seconds)
        return await self._outcome("the environment's constructor", making, self._limits.step_seconds)

    async def _until_closed(self, episode: Episode, env: BaseTaskEnv, playing: Coroutine[Any, Any, None]) -> None:
        """Play, then put the environment away, whatever became of it."""
        try:
            await playing
        except (asyncio.CancelledError, RunStopped):
            detach(asyncio.ensure_future(self._put_away(env)))
            raise
        except EpisodeEnded as end:
            episode.ended(end)
        if holds(env):
            await self._close(episode, env)

    async def _agent(self) -> ConversationAgentBase:
        """One whose making is all ours needs no thread."""
        make = self._cast.make_agent
        return make() if self._cast.made_at_once else await self._hook("the agent's constructor", make)

    def _put_away(self, env: BaseTaskEnv) -> Coroutine[Any, Any, None]:
        return within(self._limits.step_seconds, put_away(env))

    async def _close(self, episode: Episode, env: BaseTaskEnv) -> None:
        """A failure here counts, unless the episode has failed already: the first cause is kept."""
        try:
            await self._outcome("close", to_its_end(self._put_away(env)), self._limits.step_seconds)
        except EpisodeEnded:
            if not episode.detail:
                raise

    async def _converse(self, episode: Episode, agent: ConversationAgentBase, env: BaseTaskEnv, session: str) -> None:
        await self._open(episode, agent, env)
        for number in range(self._limits.max_turns):
            completion, span = await self._sample(episode, session, number)
            turn = self._chat.parse(completion.token_ids)
            action = await self._hook("the agent's turn", agent.update_from_model, turn)
            if completion.finish != "stop":
                episode.turn(completion, span)
                full = completion.finish == "context" or span[1] >= self._rollout.max_length
                raise EpisodeEnded(Status.MAX_CONTEXT if full else Status.MAX_TOKENS)
            result = await self._step(episode, env, action, completion, span)
            if result.done:
                await self._score(episode, env)
                return
            answer = await self._hook("the agent's turn", agent.update_from_env, result.messages)
            if number + 1 < self._limits.max_turns:
                self._continue(episode, answer)
        raise EpisodeEnded(Status.MAX_TURNS)

    async def _open(self, episode: Episode, agent: ConversationAgentBase, env: BaseTaskEnv) -> None:
        """The prompt, from the first observation."""
        found = await self._hook("reset", env.reset)
        first = _looked_at("reset", lambda: observed(found, "reset", self._limits.max_observation))
        opening = await self._hook("the agent's start", agent.start, first)
        episode.stream.feed(self._written(lambda: self._chat.prompt(opening, agent.tool_specs)))

    async def _sample(self, episode: Episode, session: str, turn: int) -> tuple[Completion, tuple[int, int]]:
        stream = episode.stream
        room = self._rollout.max_length - len(stream.tokens)
        if room < 1:
            limit = f"rollout.max_length is {self._rollout.max_length}"
            raise EpisodeEnded(Status.MAX_CONTEXT, f"the prompt has {len(stream.tokens)} tokens, {limit}")
        limits, most = self._rollout, min(self._rollout.max_tokens_per_turn, room)
        sampling = Sampling(
            most, self._temperature, self._chat.stop_ids, top_p=limits.top_p, top_k=limits.top_k, stop=limits.stop
        )
        request = Request(session, tuple(stream.tokens), sampling, self._request_seed(episode.job, turn))
        try:
            completion = await self._engine.generate(request)
            return completion, stream.sampled(completion)
        except EngineUnfit:
            raise
        except Exception as error:
            raise EpisodeEnded(Status.ENGINE_ERROR, cause("the engine", error)) from error

    async def _step(
        self, episode: Episode, env: BaseTaskEnv, action: Action, completion: Completion, span: tuple[int, int]
    ) -> StepResult:
        began, left = self._clock(), self._tool_time(episode)
        late = EpisodeEnded(Status.MAX_TOOL_SECONDS) if left <= self._limits.step_seconds else None
        try:
            result = await self._hook("step", env.step, action, seconds=min(left, self._limits.step_seconds), late=late)
        finally:
            episode.turn(completion, span, tool_seconds=self._clock() - began)
        checked = _looked_at("step", lambda: checked_step(result, self._limits.max_observation))
        if checked.reward:
            episode.earned(Reward(checked.reward))
        if not checked.done and self._tool_time(episode) <= 0:
            raise EpisodeEnded(Status.MAX_TOOL_SECONDS)
        return checked

    def _tool_time(self, episode: Episode) -> float:
        """Seconds that the episode's steps may still take."""
        limit = self._limits.tool_seconds
        return float("inf") if limit is None else limit - sum(t.tool_seconds for t in episode.turns)

    async def _score(self, episode: Episode, env: BaseTaskEnv) -> None:
        """The final reward belongs to the last turn; what the steps earned is then a part of its own."""
        steps = episode.reward.total
        episode.allow(self._limits.reward_seconds + self._limits.step_seconds)  # to score, and to close
        value = await self._hook("reward", env.reward, episode.messages, seconds=self._limits.reward_seconds)
        name, limit = self._cast.config.reward, self._limits.max_observation
        episode.earned(_looked_at("reward", lambda: scored(value, name, limit)))
        if steps:
            episode.earned(Reward(0.0, (("steps", steps),)))

    def _continue(self, episode: Episode, messages: Sequence[Message]) -> None:
        """Append the environment's answer, if the model then still has room to speak.

        A turn that a stop string ended is closed as a stop token would have, by a token that nobody sampled.
        """
        ids = self._written(lambda: self._chat.continuation(messages))
        if episode.stream.tokens[-1] not in self._chat.stop_ids:
            ids = [self._chat.stop_ids[0], *ids]
        if len(episode.stream.tokens) + len(ids) >= self._rollout.max_length:
            raise EpisodeEnded(Status.MAX_CONTEXT)
        episode.stream.feed(ids)

    def _written(self, write: Callable[[], list[int]]) -> list[int]:
        """Messages as tokens; what the chat format refuses, the environment should not have said."""
        try:
            return write()
        except Exception as error:
            raise EpisodeEnded(Status.ENVIRONMENT_ERROR, cause("the chat format", error)) from error

    async def _hook(
        self,
        what: str,
        hook: Callable[..., Any],
        *args: Any,
        seconds: float | None = None,
        late: EpisodeEnded | None = None,
    ) -> Any:
        """The result of a hook within its deadline; its failure ends the episode, and being late as `late` says."""
        seconds = seconds or self._limits.step_seconds
        doing = hook(*args) if is_at_once(hook) else within(seconds, call(hook, *args))
        return await self._outcome(what, doing, seconds, late)

    async def _outcome(self, what: str, doing: Awaitable[Any], seconds: float, late: EpisodeEnded | None = None) -> Any:
        try:
            return await doing
        except HookTimeout as error:
            detail = f"{what} took longer than {seconds:g} s"
            raise late or EpisodeEnded(Status.ENVIRONMENT_TIMEOUT, detail) from error
        except RunStopped:
            raise
        except Exception as error:
            raise EpisodeEnded(Status.ENVIRONMENT_ERROR, cause(what, error)) from error


def _looked_at(what: str, look: Callable[[], Checked]) -> Checked:
    """What a hook returned, checked. A value that fails while it is looked at is the environment's failure."""
    try:
        return look()
    except EpisodeEnded:
        raise
    except Exception as error:
        raise EpisodeEnded(Status.ENVIRONMENT_ERROR, cause(f"what {what} returned", error)) from error


def cause(what: str, error: BaseException) -> str:
    """An exception as the cause of an end."""
    return f"{what} raised {type(error).__name__}: {said(error)}"
