"""What every process that plays episodes needs: an engine that holds weights, and a collector that speaks to it."""

from dataclasses import dataclass
from typing import Any

from models.chat import chat_format
from rollout.cast import load_cast
from rollout.collect import TrajectoryCollectEngine
from rollout.endpoint import Endpoint, largest_request
from rollout.formats import ChatFormats
from rollout.make_engine import make_engine
from rollout.policy import Policy
from rollout.program_player import ProgramPlayer
from rollout.programs import ProgramEnvironment
from rollout.watched import WatchedEngine
from schemas.config import Run
from schemas.data import Task
from schemas.digest import sha256
from schemas.errors import RunStopped
from schemas.trajectory import ShardMetadata
from schemas.version import code_version
from storage.objects import ObjectStore
from storage.pulse import busy
from storage.rows import read_tasks
from storage.shards import ShardWriter


@dataclass(frozen=True)
class Identity:
    """Names that go into every trajectory, and the seed of its requests."""

    run: str
    seed: int
    worker: str


@dataclass(frozen=True)
class Setup:
    """An engine, who plays with it, and what its shards say of both."""

    engine: WatchedEngine
    collector: TrajectoryCollectEngine
    metadata: ShardMetadata
    endpoint: Endpoint | None = None
    """Where programs ask the engine, if programs play."""

    async def close(self) -> None:
        """Stop serving and computing."""
        try:
            if self.endpoint is not None:
                await self.endpoint.stop()
        finally:
            await self.engine.close()


async def set_up(config: Run, folder: str, policy: Policy, identity: Identity, temperature: float) -> Setup:
    """Start the configured engine with a policy's weights."""
    limit, rollout = config.supervision.work_seconds, config.rollout
    with busy("starting the engine", limit):
        cast = load_cast(config.environment, folder)
        chat = chat_format(policy.tokenizer, cast.tool_specs)
        made = await make_engine(rollout, folder, policy.config, policy.params, policy.version, policy.tokenizer)
    engine = WatchedEngine(made, patience=_patience(config), work_seconds=limit)
    metadata = ShardMetadata(policy.tokenizer.digest, chat.digest, code_version(), config.rollout.engine)
    names: dict[str, Any] = vars(identity) | {"temperature": temperature}
    if not issubclass(cast.environment, ProgramEnvironment):
        return Setup(engine, TrajectoryCollectEngine(engine, chat, cast, config, **names), metadata)
    endpoint = Endpoint(largest_request(rollout))
    await endpoint.start()
    player = ProgramPlayer(engine, ChatFormats(policy.tokenizer), cast, config, endpoint, **names)
    return Setup(engine, player, metadata, endpoint)


def _patience(config: Run) -> float:
    """The embedded engine counts every dispatch; of another it is only known that an episode has its deadline."""
    return 0.0 if config.rollout.engine == "jax" else config.rollout.episode_seconds


def shard_writer(store: ObjectStore, base: str, worker: str, metadata: ShardMetadata, config: Run) -> ShardWriter:
    """The writer of one worker's shards below `base`, with the configured limits."""
    limits = config.rollout
    return ShardWriter(
        store, base, worker, metadata,
        seal_rows=limits.seal_rows, seal_bytes=limits.seal_bytes, seal_seconds=limits.seal_seconds,
    )  # fmt: skip


def stored_tasks(store: ObjectStore, key: str, digest: str) -> list[Task]:
    """The tasks in a stored file; RunStopped if it is not the file that the stage was made from."""
    raw = store.get(key).data
    if sha256(raw) != digest:
        raise RunStopped(f"{store.url}/{key} is not the task file that was recorded: restore it or start a new run")
    return read_tasks(raw, key.rpartition(".")[2], key)
