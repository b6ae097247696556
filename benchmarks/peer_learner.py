"""The peer's side of `learner.py`, for a Python that has `google-tunix`: one GRPO step for each line that it reads.

Its own loss under one jit with optax's AdamW, on its own Qwen 3 decoder; prints the seconds of each step as JSON.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.models.qwen3 import model as qwen3
from tunix.rl import algo_core
from tunix.rl.agentic import agentic_grpo_learner as grpo


def main(rows: int, prompt: int, response: int) -> None:
    shape = qwen3.ModelConfig(
        num_layers=4, vocab_size=256, embed_dim=128, hidden_dim=384, num_heads=4, head_dim=32, num_kv_heads=2,
        rope_theta=10_000, norm_eps=1e-6, use_tied_embedding=True,
    )  # fmt: skip
    model = qwen3.Qwen3(shape, rngs=nnx.Rngs(0))
    config = grpo.GRPOConfig(num_generations=rows // 4, beta=0.0)
    config.__dict__["temperature"] = 1.0
    draw = np.random.default_rng(0)
    example = grpo.TrainExample(
        prompt_ids=jnp.asarray(draw.integers(3, 256, (rows, prompt)), jnp.int32),
        prompt_mask=jnp.ones((rows, prompt), bool),
        completion_ids=jnp.asarray(draw.integers(3, 256, (rows, response)), jnp.int32),
        completion_mask=jnp.ones((rows, response), jnp.int32),
        advantages=jnp.asarray(draw.normal(size=rows), jnp.float32),
        ref_per_token_logps=None,
        old_per_token_logps=jnp.full((rows, response), -5.5),
        policy_version=None,
    )
    optimizer = nnx.Optimizer(model, optax.adamw(1e-4), wrt=nnx.Param)

    @nnx.jit
    def step(model: qwen3.Qwen3, optimizer: nnx.Optimizer, example: grpo.TrainExample) -> jax.Array:
        def loss(model: qwen3.Qwen3) -> jax.Array:
            found = algo_core.grpo_loss_fn(model, example, config, 0, 2)
            return found[0] if isinstance(found, tuple) else found.primary_loss.compute()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        step(model, optimizer, example).block_until_ready()
        print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
