"""Adapters as a learner leaves them beside a policy, and the weights that they make."""

import jax
import numpy as np

from models.pure import shapes
from schemas.lora import LoRA
from schemas.manifest import WeightsRef
from trainer.lora import init_adapters, merged
from trainer.peft_files import peft_files

SETTINGS = LoRA(rank=4, alpha=6.0)
BASE = WeightsRef(prefix="base", sha256="b" * 64, origin="somewhere")


def adapters(config, seed, lora=SETTINGS):
    """Adapters of which no part is zero."""
    draw = np.random.default_rng(seed)
    fresh = init_adapters(shapes(config), lora, seed)
    return jax.tree.map(lambda x: x + draw.normal(0, 0.2, x.shape).astype(np.float32), fresh)


def adapted_policy(config, base, seed, lora=SETTINGS):
    """PEFT's files of adapters, and the parameters that the learner computes with."""
    made = adapters(config, seed, lora)
    return peft_files(made, lora, BASE), jax.tree.map(np.asarray, merged(made, base, lora.scale))
