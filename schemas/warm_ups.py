"""Warm-ups: the stages before reinforcement, each told apart by its `kind`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from schemas.base import Name, Positive, PositiveFloat, Section
from schemas.optimizer import Optimizer


class _WarmUp(Section):
    kind: Literal["sft", "dpo", "orpo"]
    name: Name
    """The stage's name; its outputs lie under `stages/<name>-<key>` and are shared by runs."""
    data: str
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
    data: str
    """JSONL or Parquet file of demonstrations (`messages`, `tools`): a path or a store URL. They may show
    training tasks, but nothing that is measured."""


class DPO(_WarmUp):
    """A warm-up by direct preference optimization (arXiv 2305.18290). The weights that it starts from are the
    reference policy."""

    kind: Literal["dpo"]
    data: str
    """JSONL or Parquet file of pairs (`prompt`, `chosen`, `rejected`, `tools`): a path or a store URL. They may show
    training tasks, but nothing that is measured."""
    beta: PositiveFloat = 0.1
    """How dear it is to leave the reference policy."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """The share of pairs that are taken to be the wrong way round."""


class ORPO(_WarmUp):
    """A warm-up by odds ratio preference optimization (arXiv 2403.07691): imitates the chosen side and pushes the odds
    of the two sides apart. It needs no reference policy."""

    kind: Literal["orpo"]
    data: str
    """JSONL or Parquet file of pairs (`prompt`, `chosen`, `rejected`, `tools`): a path or a store URL. They may show
    training tasks, but nothing that is measured."""
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
