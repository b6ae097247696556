"""Low-rank adapters: what is trained instead of all weights."""

from typing import Annotated

from pydantic import Field

from schemas.base import Positive, PositiveFloat, Section


class LoRA(Section):
    """Train low-rank adapters alone (LoRA, arXiv 2106.09685): in RL, and in every warm-up that starts from weights.

    A warm-up that starts from scratch trains all weights: there is nothing yet to adapt. Each stage begins with fresh
    adapters on the weights that it starts from."""

    rank: Positive = 8
    """Rows of A and columns of B: a target W becomes W + scale * B A. Less than either side of every target."""
    alpha: PositiveFloat = 16.0
    """scale = alpha / rank."""
    rank_stabilized: bool = False
    """scale = alpha / sqrt(rank) instead (arXiv 2312.03732), so that higher ranks do not learn more slowly."""
    targets: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] = ("*_proj",)
    """Which matrices get an adapter, by the end of their name or all of it: `q_proj`, `self_attn.*`,
    `model.layers.0.*`. `*` stands for any characters. Embeddings and norms never get one."""

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / (self.rank**0.5 if self.rank_stabilized else self.rank)
