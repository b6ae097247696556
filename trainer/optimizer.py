"""The optimizer of a stage, from its configuration: clipped AdamW (arXiv 1711.05101) with a schedule."""

import jax
import optax

from schemas.optimizer import Optimizer


def schedule(config: Optimizer, steps: int) -> optax.Schedule:
    """The learning rate by update (from 0): a linear warm-up, then constant, linear or cosine to the final rate."""
    peak, warm = config.learning_rate, config.warmup_steps
    falling = max(1, (config.decay_steps or steps) - warm)
    after: optax.Schedule
    if config.schedule == "linear":
        after = optax.linear_schedule(peak, peak * config.final_ratio, falling)
    elif config.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, falling, alpha=config.final_ratio)
    else:
        after = optax.constant_schedule(peak)
    rise = optax.linear_schedule(peak / (warm + 1), peak, warm) if warm else optax.constant_schedule(peak)
    return optax.join_schedules([rise, after], [warm])


def make_optimizer(config: Optimizer, steps: int) -> optax.GradientTransformation:
    """Clip by global norm, then AdamW; weight decay acts on matrices only, not on norms."""
    clip = optax.clip_by_global_norm(config.max_grad_norm) if config.max_grad_norm else optax.identity()
    adamw = optax.adamw(
        schedule(config, steps),
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params),
    )
    return optax.chain(clip, adamw)
