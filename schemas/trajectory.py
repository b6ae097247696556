"""One episode of an agent as it was: facts only, one row of a shard.

Made by rollout workers (`rollout`), sealed into shards by `storage.shards`, eaten by the learner (`trainer`) and
audits.
Advantages are no facts: the learner derives them from rewards when it forms a batch.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from schemas import checksum
from schemas.columns import list_array, made, number_tuples
from schemas.version import SCHEMA_VERSION


class Status(StrEnum):
    """How an episode ended."""

    SUCCEEDED = "succeeded"
    """The environment or the agent ended it."""
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    """A turn ran into its token limit."""
    MAX_CONTEXT = "max_context"
    """The context was full."""
    MAX_TOOL_SECONDS = "max_tool_seconds"
    """Its tools have used up the time that all of them have together."""
    TIMEOUT = "timeout"
    """The whole episode ran past its deadline."""
    ENVIRONMENT_TIMEOUT = "environment_timeout"
    """One call of the environment, a tool or a reward ran past its deadline."""
    ENVIRONMENT_ERROR = "environment_error"
    """The environment, a tool or a reward raised or returned what it must not."""
    FLOODED = "flooded"
    """The environment returned more text than an observation may hold."""
    ENGINE_ERROR = "engine_error"
    QUARANTINED = "quarantined"
    """Not played: the task does harm (`rollout.quarantine_after`)."""


FAILED = frozenset(
    {
        Status.ENVIRONMENT_TIMEOUT,
        Status.ENVIRONMENT_ERROR,
        Status.FLOODED,
        Status.TIMEOUT,
        Status.ENGINE_ERROR,
        Status.QUARANTINED,
    }
)
"""Statuses of attempts that are never trained; they are retried as the next attempt, but for `quarantined`."""


@dataclass(frozen=True)
class Turn:
    """One sampled assistant turn and the environment's answer to it. `start` and `end` are token positions."""

    start: int
    end: int
    reward: float
    generate_seconds: float
    queue_seconds: float
    tool_seconds: float


@dataclass(frozen=True)
class Trajectory:
    """One attempt at one sample of one group. T = number of tokens in the stream."""

    id: str
    """`<group>-<sample>-<attempt>`, unique in a run's RL stage."""
    run: str
    group: int
    sample: int
    attempt: int
    task_id: str
    task_digest: str
    seed: int
    worker: str
    tokens: tuple[int, ...]
    """[T] every token fed or sampled, in order, never re-tokenized."""
    mask: tuple[bool, ...]
    """[T] true where the policy sampled the token: these are trained."""
    logprobs: tuple[float, ...]
    """[T] float32 log-prob under the policy that sampled it; 0 where not sampled."""
    version_starts: tuple[int, ...]
    """Positions at which a run of tokens sampled by one policy version starts, ascending."""
    versions: tuple[int, ...]
    """The policy version of each such run."""
    segment_starts: tuple[int, ...]
    """Positions at which the stream starts anew, none of them sampled; (0,) but where a program branched or rewrote its
    context. A segment sees nothing of those before it."""
    turns: tuple[Turn, ...]
    reward: float
    components: tuple[tuple[str, float], ...]
    """Named parts of the reward."""
    status: str
    detail: str
    """The cause of a failed status in words, else empty."""
    generate_seconds: float
    tool_seconds: float
    queue_seconds: float
    messages: str
    """JSON list of the messages, for people."""
    sampling: str
    """JSON object of the sampling parameters."""

    @property
    def oldest_version(self) -> int:
        """The oldest policy version among the sampled tokens: what staleness is counted from."""
        return min(self.versions)

    @property
    def newest_version(self) -> int:
        """The newest; -1 where nothing was sampled, as in an episode whose first call failed."""
        return max(self.versions, default=-1)

    @property
    def failed(self) -> bool:
        """Whether this attempt can't be trained. An episode without a sampled token can't either."""
        return self.status in FAILED or not any(self.mask)

    @property
    def solved(self) -> bool:
        """Whether it solved its task: its reward's part `success` says so, and without one a reward of 1 does."""
        return not self.failed and dict(self.components).get("success", self.reward) >= 1.0


_TURN = pa.struct(
    [
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("reward", pa.float32()),
        ("generate_seconds", pa.float64()),
        ("queue_seconds", pa.float64()),
        ("tool_seconds", pa.float64()),
    ]
)
_COMPONENT = pa.struct([("name", pa.string()), ("value", pa.float32())])

COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("run", pa.string()),
        ("group", pa.int64()),
        ("sample", pa.int32()),
        ("attempt", pa.int32()),
        ("task_id", pa.string()),
        ("task_digest", pa.string()),
        ("seed", pa.int64()),
        ("worker", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float32())),
        ("version_starts", pa.list_(pa.int32())),
        ("versions", pa.list_(pa.int32())),
        ("segment_starts", pa.list_(pa.int32())),
        ("turns", pa.list_(_TURN)),
        ("reward", pa.float32()),
        ("components", pa.list_(_COMPONENT)),
        ("status", pa.string()),
        ("detail", pa.string()),
        ("generate_seconds", pa.float64()),
        ("tool_seconds", pa.float64()),
        ("queue_seconds", pa.float64()),
        ("messages", pa.string()),
        ("sampling", pa.string()),
    ]
)
"""The columns of a shard, without its metadata."""


@dataclass(frozen=True)
class ShardMetadata:
    """What holds for every row of a shard; stored as the Arrow schema's metadata."""

    tokenizer: str
    """Digest of the tokenizer."""
    chat_format: str
    """Digest of the chat format."""
    code: str
    engine: str
    schema_version: int = SCHEMA_VERSION

    def encode(self) -> dict[bytes, bytes]:
        """With room for the file's checksum."""
        return {f"headrace.{k}".encode(): str(v).encode() for k, v in asdict(self).items()} | {
            checksum.KEY: checksum.BLANK
        }

    @classmethod
    def decode(cls, raw: Mapping[bytes, bytes] | None) -> "ShardMetadata":
        """Raises KeyError where a field is missing and ValueError where the version is no number."""
        values = {f.name: (raw or {})[f"headrace.{f.name}".encode()].decode() for f in fields(cls)}
        return cls(**{**values, "schema_version": int(values["schema_version"])})  # type: ignore[arg-type]


_LONG = ("tokens", "mask", "logprobs")
"""Columns with a value for each token, which are worth a way of their own."""


def to_table(rows: Sequence[Trajectory], metadata: ShardMetadata) -> pa.Table:
    """The rows as an Arrow table with the shard's schema and metadata."""
    columns = [_column(rows, field) for field in COLUMNS]
    return pa.table(columns, schema=COLUMNS.with_metadata(metadata.encode()))


def _column(rows: Sequence[Trajectory], field: pa.Field) -> pa.Array:
    values = list(map(attrgetter(field.name), rows))
    if field.name in _LONG:
        return list_array(values, field.type.value_type)
    if field.name == "turns":
        values = [[vars(turn) for turn in turns] for turns in values]
    if field.name == "components":
        values = [[{"name": n, "value": v} for n, v in components] for components in values]
    return pa.array(values, field.type)


def from_table(table: pa.Table) -> list[Trajectory]:
    """The table's rows; the inverse of `to_table`. The table has the columns of `COLUMNS` and no empty cell."""
    columns = [_values(column, field) for column, field in zip(table.columns, COLUMNS, strict=True)]
    names = COLUMNS.names
    return [made(Trajectory, zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray, field: pa.Field) -> list[Any]:
    """A Python value for each row."""
    if field.name in _LONG:
        return number_tuples(column)
    values = column.to_pylist()
    if field.name == "turns":
        return [tuple([made(Turn, turn) for turn in turns]) for turns in values]
    if field.name == "components":
        return [tuple([(c["name"], c["value"]) for c in components]) for components in values]
    return list(map(tuple, values)) if pa.types.is_list(field.type) else values


_ARRAYS = {
    "tokens": "<i4",
    "mask": "u1",
    "logprobs": "<f4",
    "version_starts": "<i4",
    "versions": "<i4",
    "segment_starts": "<i4",
}
_SCALARS = [name for name in COLUMNS.names if name not in (*_ARRAYS, "turns", "components")]


def row_digest(row: Trajectory) -> str:
    """SHA-256 of one row: canonical JSON of its scalar fields, then each array's length and little-endian bytes.

    Floats are float32 where the column is, so that a row read back from a shard has the digest it had when written.
    """
    scalars = {name: getattr(row, name) for name in _SCALARS}
    scalars["reward"] = float(np.float32(row.reward))
    scalars["turns"] = [vars(t) | {"reward": float(np.float32(t.reward))} for t in row.turns]
    scalars["components"] = [[n, float(np.float32(v))] for n, v in row.components]
    out = hashlib.sha256(json.dumps(scalars, sort_keys=True, separators=(",", ":")).encode())
    for name, dtype in _ARRAYS.items():
        data = np.asarray(getattr(row, name), dtype=dtype)
        out.update(f"{name}:{data.size}:".encode())
        out.update(data.tobytes())
    return out.hexdigest()
