"""The optimizer of a training stage."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Fraction, Positive, PositiveFloat, Section


class Optimizer(Section):
    """AdamW with a learning-rate schedule."""

    learning_rate: Annotated[float, Field(ge=0)]
    """The highest rate, reached after `warmup_steps`."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls after the warm-up."""
    warmup_steps: Count = 0
    """Updates over which the rate rises linearly from 0."""
    decay_steps: Positive | None = None
    """Updates (warm-up included) after which the rate is `final_ratio` of the highest; default: all of the stage."""
    final_ratio: Fraction = 0.0
    """The rate at the end of a falling schedule, as a share of the highest."""
    b1: Fraction = 0.9
    b2: Fraction = 0.999
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: PositiveFloat | None = 1.0
    """Gradients are scaled down to this global norm."""
