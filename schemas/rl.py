"""The reinforcement learning stage's settings, and what follows from them about updates and staleness."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.algorithms import Loss
from schemas.base import Count, Positive, PositiveFloat, Section
from schemas.mesh import Mesh
from schemas.optimizer import Optimizer


class RL(Section):
    """Reinforcement learning: the learner and its bounded staleness."""

    tasks: str
    """JSONL or Parquet file of training tasks (`id`, `prompt`, `answer`)."""
    steps: Positive
    """Ledger steps of the run; raising it continues a finished run."""
    groups_per_batch: Positive = 8
    group_size: Positive = 8
    """Samples per task; a group-relative advantage needs at least two, `gae` one."""
    max_staleness: Count = 2
    """Bound on (optimizer updates applied - oldest version sampled from) of anything trained. 0: synchronous."""
    loss: Loss = Loss()
    optimizer: Optimizer
    critic_optimizer: Optimizer | None = None
    """Of the critic, where `loss.advantage` is `gae`; default: as `optimizer`."""
    mini_batches: Positive = 1
    """Updates of one pass over a batch: its groups are dealt out in order, each to one update."""
    epochs: Positive = 1
    """Passes over a batch. A step makes `mini_batches` x `epochs` updates, and what it trains grows staler with each:
    at most `max_staleness` + 1 of them."""
    row_tokens: Positive | None = None
    """Tokens of a row that trajectories share (packing), at least `rollout.max_length`. Left out: a row of
    `rollout.max_length` for each. It changes results by rounding only."""
    micro_batch: Positive | None = None
    """Rows per forward pass: a processor is fastest with some 1,000 tokens. Default: the whole batch, and with
    `row_tokens` an eighth as many rows as trajectories. Without `row_tokens` it must divide the batch."""
    remat: bool = False
    """Make the layers again on the backward pass instead of keeping them (rematerialisation): about a third more work
    for memory that does not grow with the layers' insides."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of forward and backward passes. Weights, sums of gradients, optimizer and logits stay in float32. With `bfloat16`
    the learner's log-probs differ from the sampler's in the third digit after the point: watch `mismatch_kl`, and
    choose a `loss.correction`."""
    publish_every: Positive = 1
    """Publish a policy every so many steps. Unpublished updates count as staleness."""
    publish_dtype: Literal["float32", "bfloat16"] = "float32"
    checkpoint_every: Positive = 10
    window_seconds: Annotated[float, Field(ge=0)] = 1.0
    """Least time between two writes of the window; object stores allow one object about one write a second."""
    group_seconds: PositiveFloat = 600.0
    """A group that is not whole so long after its first claim ends as incomplete or trains its survivors."""
    idle_seconds: PositiveFloat = 900.0
    """The learner stops with the cause when nothing arrives for so long."""
    max_empty_steps: Positive = 8
    """The run stops with the cause after so many steps in a row without anything to train."""
    cores: tuple[int, ...] = ()
    """Processor cores of the learner, of each of its processes; recorded, since they decide the bytes. Empty: not
    bound."""
    mesh: Mesh = Mesh()
    processes: Positive = 1
    """Processes of the learner on its machine, each with an equal share of the mesh's devices. The first one alone
    writes; all read the shards. On a processor each has devices of its own: one, or as many as `XLA_FLAGS` says."""

    @model_validator(mode="after")
    def _consistent(self) -> "RL":
        rows = self.groups_per_batch * self.group_size
        if self.group_size < self.loss.least:
            raise ValueError(
                f"group_size = 1 with the group-relative advantage `{self.loss.advantage}`: a sample is compared with "
                f"others of its task, so ask for at least two"
            )
        if self.critic_optimizer is not None and not self.loss.critic:
            raise ValueError("critic_optimizer is of a critic: set loss.algorithm = `ppo`, or leave it out")
        if self.micro_batch and self.row_tokens is None and rows % self.micro_batch:
            raise ValueError(f"micro_batch must divide the batch of {rows} rows (groups_per_batch x group_size)")
        if self.mesh.devices % self.processes:
            raise ValueError(
                f"processes = {self.processes} does not divide the devices of mesh (data x fsdp x tensor = "
                f"{self.mesh.devices}): each process takes as many"
            )
        if self.updates > self.max_staleness + 1:
            raise ValueError(
                f"mini_batches x epochs = {self.updates} updates on a batch make the last of them {self.updates - 1} "
                f"updates stale: raise max_staleness to at least {self.updates - 1}"
            )
        if self.publish_every * self.updates > self.max_staleness + 1:
            raise ValueError(
                f"publish_every = {self.publish_every} makes samples older than max_staleness = {self.max_staleness} "
                f"allows: publish at least every max_staleness + 1 updates"
            )
        return self

    @property
    def updates(self) -> int:
        """Optimizer updates of a step on a full batch."""
        return self.mini_batches * self.epochs

    def updates_on(self, groups: int) -> int:
        """Optimizer updates of a step that trains so many groups."""
        return self.epochs * min(self.mini_batches, groups)

    @property
    def steps_behind(self) -> int:
        """How many steps before its own a trajectory may have been sampled, so that its last update is in bounds."""
        return (self.max_staleness + 1) // self.updates - 1

    def staleness(self, steps: int) -> int:
        """In optimizer updates, at a step's last one, of what was sampled so many steps before it."""
        return steps * self.updates + self.updates - 1
