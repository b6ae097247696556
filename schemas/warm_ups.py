"""Warm-ups: the stages before reinforcement, each told apart by its `kind`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from schemas.base import Count, Name, Positive, PositiveFloat, Section
from schemas.optimizer import Optimizer


class RunPairs(Section):
    """Pairs from the log of a run in the same store: of each group the best trajectory against the worst, as they were
    sampled. Groups whose rewards are equal are left out."""

    run: Name
    """The run; its newest RL stage counts. The selection is made when the run that asks for it is first started."""
    first_step: Count = 0
    end_step: Positive | None = None
    """Of trajectories that ended at the steps from `first_step` to before this; default: as far as the ledger goes."""
    min_reward: Annotated[float, Field(ge=0, le=1)] = 1.0
    """What a trajectory must have earned to be imitated or preferred."""
    per_task: Positive | None = None
    """At most so many of each task: the best, of equals the newest."""


class RunSamples(RunPairs):
    """Demonstrations from the log of a run in the same store (rejection sampling): the best trajectories of each group,
    as they were sampled, each stream once."""

    per_group: Positive = 1
    """At most so many of each group."""


def _source(value: Any) -> str:
    return "file" if isinstance(value, str) or not isinstance(value, Mapping | Section) else "log"


_Demonstrations = Annotated[Annotated[str, Tag("file")] | Annotated[RunSamples, Tag("log")], Discriminator(_source)]
_Pairs = Annotated[Annotated[str, Tag("file")] | Annotated[RunPairs, Tag("log")], Discriminator(_source)]


def check_row(row: int, setting: str, length: int) -> None:
    """ValueError unless a row of so many tokens fits the longest stream."""
    if row < length:
        raise ValueError(
            f"row_tokens = {row} cannot fit a stream of {setting} = {length} tokens: raise it to at least {length}"
        )


class _WarmUp(Section):
    kind: Literal["sft", "dpo", "orpo"]
    name: Name
    """The stage's name; its outputs lie under `stages/<name>-<key>` and are shared by runs."""
    data: Any
    steps: Positive
    batch_size: Positive = 32
    """Demonstrations or pairs a step."""
    max_length: Positive = 256
    """Tokens of a demonstration, or of a prompt with either side of its pair; what is longer is refused."""
    shuffle: bool = True
    """Shuffle each epoch by the seed; otherwise the file's order is the curriculum."""
    optimizer: Optimizer


class SFT(_WarmUp):
    """A supervised warm-up: imitate the assistant turns of demonstrations."""

    kind: Literal["sft"] = "sft"
    data: _Demonstrations
    """JSONL or Parquet file of demonstrations (`messages`, `tools`): a path or a store URL; or a table that
    takes them from a run's log. They may show training tasks, but nothing that is measured."""
    row_tokens: Positive | None = None
    """Tokens of a row that demonstrations share, at least `max_length`; an eighth of `batch_size` rows are passed at a
    time. Left out: a row of `max_length` for each, passed all at once."""

    @model_validator(mode="after")
    def _fits(self) -> "SFT":
        if self.row_tokens is not None:
            check_row(self.row_tokens, "max_length", self.max_length)
        return self


class _Preference(_WarmUp):
    data: _Pairs
    """JSONL or Parquet file of pairs (`prompt`, `chosen`, `rejected`, `tools`): a path or a store URL; or a table that
    takes them from a run's log. They may show training tasks, but nothing that is measured."""
    micro_batch: Positive | None = None
    """Pairs per forward pass; default: the whole batch. Must divide it."""

    @model_validator(mode="after")
    def _divides(self) -> "_Preference":
        if self.micro_batch and self.batch_size % self.micro_batch:
            raise ValueError(f"micro_batch must divide batch_size = {self.batch_size}")
        return self

    @property
    def at_once(self) -> int:
        """Pairs per forward pass."""
        return self.micro_batch or self.batch_size


class DPO(_Preference):
    """A warm-up by direct preference optimization (arXiv 2305.18290). The weights that it starts from are the
    reference policy."""

    kind: Literal["dpo"]
    beta: PositiveFloat = 0.1
    """How dear it is to leave the reference policy."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """The share of pairs that are taken to be the wrong way round."""


class ORPO(_Preference):
    """A warm-up by odds ratio preference optimization (arXiv 2403.07691): imitates the chosen side and pushes the odds
    of the two sides apart. It needs no reference policy."""

    kind: Literal["orpo"]
    odds_weight: PositiveFloat = 0.1
    """The weight of the odds ratio beside imitation: the paper's lambda."""


KINDS = ("sft", "dpo", "orpo")


def _kind(value: Any) -> Any:
    return value.get("kind", "sft") if isinstance(value, Mapping) else getattr(value, "kind", None)


WarmUp = Annotated[
    Annotated[SFT, Tag("sft")] | Annotated[DPO, Tag("dpo")] | Annotated[ORPO, Tag("orpo")],
    Discriminator(_kind, custom_error_type="kind", custom_error_message=f"`kind` is one of {', '.join(KINDS)}"),
]
"""Any warm-up; without a `kind` it is supervised."""
