"""What SGLang's model code computes otherwise than the learner: replaced before a model is made.

Imports nothing of Headrace but `rollout/jax_sampling.py`, by its path.
"""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from sgl_jax.srt.layers.embeddings import Llama3RotaryEmbedding
from sgl_jax.srt.layers.sampler import Sampler

LANES = 128


def _jax_sampling() -> Callable[..., jax.Array]:
    """`sample` of the JAX engine: the same noise of seed and position, the same truncation."""
    path = Path(__file__).parents[1] / "jax_sampling.py"
    spec = importlib.util.spec_from_file_location("headrace_jax_sampling", path)
    assert spec is not None and spec.loader is not None  # the file is there
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.sample


def sample_as_the_jax_engine() -> None:
    """Have SGLang sample as the JAX engine does, from the ids below `min_p` where that is set, and tell raw log-probs.

    Its own log-probs are those after temperature, its seeded noise is not independent between tokens, and it has no way
    to ban ids. `min_p` is a number of each row that nothing else here needs.
    """
    sample = _jax_sampling()

    def sampled(self: Sampler, output: Any, asked: Any, **_: Any) -> tuple[jax.Array, jax.Array, Any]:
        def spread(x: jax.Array, *axes: str | None) -> jax.Array:
            return jax.sharding.reshard(x, NamedSharding(self.mesh, PartitionSpec(*axes)))

        logits = spread(output.next_token_logits, None, None).astype(jnp.float32)
        size = logits.shape[-1]
        allowed = spread(asked.min_ps, None)
        allowed = jnp.where(allowed > 0, allowed, size)[:, None]
        offered = jnp.where(jnp.arange(size)[None] < allowed, logits, -jnp.inf)
        top_k = spread(asked.top_ks, None)
        temperature, top_p = spread(asked.temperatures, None, None)[:, 0], spread(asked.top_ps, None)
        seed, position = spread(asked.sampling_seeds, None), spread(asked.positions, None)
        chosen = sample(offered, temperature, top_p, jnp.where(top_k < size, top_k, 0), seed, position)
        logprobs = jax.nn.log_softmax(logits, axis=-1)
        told = None
        if asked.return_logprob:
            told = self._process_logprob_results((output, asked, chosen, logprobs))
        return spread(chosen, "data"), spread(logprobs, "data", "tensor"), told

    Sampler.__call__ = sampled


def scale_rotations() -> None:
    """Have Llama 3.1's scaled rotary frequencies used: SGLang has their formula, and turns by the plain ones."""
    plain = Llama3RotaryEmbedding.__init__

    def scaled(self: Llama3RotaryEmbedding, *arguments: Any, **named: Any) -> None:
        plain(self, *arguments, **named)
        with jax.ensure_compile_time_eval():
            self._inv_freq_np = np.asarray(self._compute_inv_freq(self.base))

    Llama3RotaryEmbedding.__init__ = scaled


def check_heads(folder: str) -> None:
    """ValueError for heads that the native attention can't compute; it would fail at the first prompt."""
    given = json.loads((Path(folder) / "config.json").read_text())
    size = given.get("head_dim") or given["hidden_size"] // given["num_attention_heads"]
    if size % LANES:
        raise ValueError(f"its heads have {size} dimensions, and SGLang's native attention needs a multiple of {LANES}")


def corrected(folder: str) -> dict[str, Any]:
    """What SGLang must be told of a model beside its `config.json`.

    It reads the biases of a Qwen 2 by a key that is not that model's, and may say that there are none.
    """
    given = json.loads((Path(folder) / "config.json").read_text())
    return {"attention_bias": True} if given["model_type"] == "qwen2" else {}
