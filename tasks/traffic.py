"""What RL will ask of a remote store in an hour: operations and bytes, from the configuration alone.

Writes and listings are what clouds charge most for (class A), reads are cheap (class B), deletes are free. The figures
are for the time during RL and err on the high side; warm-ups and evaluations ask for little. Workers that join beyond
those of the configuration are not known here: `docs/gcs.md` says what each of them adds.
"""

from dataclasses import dataclass

from schemas.config import Run
from tasks.elsewhere import SECONDS as SHOWN_SECONDS
from tasks.initial import read_config_json
from tasks.join import LOOK_SECONDS
from tasks.lease import SECONDS as LEASE_SECONDS
from tasks.reinforce import ROUND_SECONDS
from tasks.request import Request
from tasks.run_watch import LOOK_READS

HOUR = 3600.0
STEP_SECONDS = 10.0
ANSWER_SECONDS = 0.03
"""Taken for the time of a small request from a machine in the bucket's region."""
POLICY_FILES, SNAPSHOT_FILES = 5, 14
"""Files of a published policy, and of an Orbax snapshot of a small model."""
ROW_OVERHEAD = 1500
"""Bytes of a trajectory beside its tokens: ids, messages, timings."""
TOKEN_BYTES = 6
"""Bytes of a token in a shard: id, log-prob, mask, compressed."""
BYTE_LEVEL = 263
"""Tokens of the byte-level tokenizer."""


@dataclass(frozen=True)
class Traffic:
    """What an hour of RL asks of the store. `kept` bytes stay there at its end."""

    writes: float
    reads: float
    sent: float
    fetched: float
    kept: float


def estimate(config: Run, parameters: int, *, step_seconds: float = STEP_SECONDS, pause: float = 1.0) -> Traffic:
    """The traffic at one step every `step_seconds`, with a policy of so many parameters.

    `pause`: least seconds between two writes of one object (`storage.objects.write_pause`).
    """
    rl, rollout = config.rl, config.rollout
    workers, steps = rollout.workers, HOUR / step_seconds
    rows = rl.groups_per_batch * rl.group_size
    policies, checkpoints = steps / rl.publish_every, steps / rl.checkpoint_every
    weights = parameters * (2 if rl.publish_dtype == "bfloat16" else 4)
    snapshot = 3 * 4 * parameters
    shards = steps * rows * max(1 / rollout.seal_rows, min(1.0, workers * step_seconds / rollout.seal_seconds / rows))
    shard_bytes = steps * rows * (ROW_OVERHEAD + TOKEN_BYTES * rollout.max_length)

    changing = HOUR / max(rl.window_seconds, step_seconds, pause) + HOUR / max(3.0, step_seconds)
    beating = workers * HOUR / max(rollout.heartbeat_seconds, pause) + HOUR / (LEASE_SECONDS / 3)
    claims = steps * rl.groups_per_batch * workers  # each may try each: whoever loses has asked as well
    stored = policies * (POLICY_FILES + 2 + workers) + checkpoints * (SNAPSHOT_FILES + 1)
    watching = (1 + workers) * 4 / rollout.lease_seconds * (workers + (rl.max_staleness + 1) * rl.groups_per_batch)
    watching += 4 / rollout.lease_seconds  # whether another learner has written the next record
    loading = policies * workers * (1 + POLICY_FILES)
    turn = (1 + workers) * ANSWER_SECONDS + rollout.poll_seconds  # of a learner that waits: each worker's next shard
    polls = workers / max(rollout.poll_seconds, ANSWER_SECONDS) + (1 + workers) / turn
    if rollout.infrastructure == "deployment":  # each worker joins by a flow run of its own
        polls += workers * LOOK_READS / LOOK_SECONDS
        polls += 1 / ROUND_SECONDS + 4 / rollout.lease_seconds * (workers + 1) + (workers + 1) / SHOWN_SECONDS
    replaced = policies * weights * max(0.0, 1 - rl.publish_every / rl.checkpoint_every)
    sent = policies * weights + checkpoints * snapshot + shard_bytes
    return Traffic(
        writes=changing + beating + claims + stored + shards + steps,
        reads=HOUR * (polls + watching) + loading + shards,
        sent=sent,
        fetched=policies * weights * workers + shard_bytes,
        kept=sent - replaced,
    )


def parameters(request: Request) -> int:
    """Parameters of the model that the request starts from."""
    shape = read_config_json(request)
    if shape is None:
        assert request.config.model.architecture is not None  # the configuration says one or the other
        shape = request.config.model.architecture.model_dump() | {"vocab_size": BYTE_LEVEL}
    return count_parameters(shape)


def count_parameters(shape: dict) -> int:
    """Parameters of a Llama-style decoder, from the entries of its `config.json`."""
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    width = shape.get("head_dim") or hidden // heads
    attention = 2 * hidden * width * (heads + (shape.get("num_key_value_heads") or heads))
    layer = attention + 3 * hidden * shape["intermediate_size"] + 2 * hidden
    embeddings = shape["vocab_size"] * hidden * (1 if shape.get("tie_word_embeddings") else 2)
    return embeddings + shape["num_hidden_layers"] * layer + hidden


def sentence(traffic: Traffic) -> str:
    """The estimate at a step every STEP_SECONDS in words."""
    return (
        f"at a step every {STEP_SECONDS:g} s, an hour of RL makes about {traffic.writes:,.0f} writes and lists "
        f"(class A) and {traffic.reads:,.0f} reads (class B), sends {size(traffic.sent)}, fetches "
        f"{size(traffic.fetched)} and leaves {size(traffic.kept)}; docs/gcs.md says what that costs"
    )


def size(count: float) -> str:
    """Bytes in a unit that people read."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.0f} TB"
