"""Low-rank adapters: what they are to the model, what is trained, and what is kept of it."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load
from support import numpy_llama
from support.protocol import config, trajectory
from support.tiny import TINY, lively

from models.pure import apply, flatten, init_params, nest, shapes
from models.weights import params_digest
from schemas.errors import RequestError, RunStopped
from schemas.lora import LoRA
from schemas.manifest import CheckpointManifest, Probe, WeightsRef
from schemas.optimizer import Optimizer
from storage.memory import MemoryStore
from trainer.assembler import Row
from trainer.batch import lay_out
from trainer.jax_updater import JaxUpdater
from trainer.lora import adapted, freeze, init_adapters, merged
from trainer.optimizer import make_optimizer
from trainer.packing import padded
from trainer.peft_files import peft_files
from trainer.step import WHOLE, init_state, line_logprobs, make_sft_step

SMALL = dataclasses.replace(TINY, num_hidden_layers=1)
BASE = jax.tree.map(np.asarray, lively(init_params(SMALL, 0)))
SETTINGS = LoRA(rank=2, alpha=3.0, targets=("q_proj", "mlp.*"))
REF = WeightsRef(prefix="base", sha256="b" * 64, origin="somewhere")
RUN = config(rollout={"max_length": 8}, optimizer={"learning_rate": 0.01}, loss={"kl": "k3", "kl_coefficient": 0.1})
ROWS = tuple(Row(("w", 0, i), trajectory(0, i), str(i)) for i in range(3))
ADVANTAGES = (0.5, -1.0, 1.0)
CHOSEN = [
    "model.layers.0.mlp.down_proj",
    "model.layers.0.mlp.gate_proj",
    "model.layers.0.mlp.up_proj",
    "model.layers.0.self_attn.q_proj",
]


def updater(store=None, lora=SETTINGS, run=RUN):
    run = run.model_copy(update={"lora": lora})
    return JaxUpdater(store or MemoryStore(), "base", run, SMALL, BASE, seed=5)


def moved(seed=3):
    """Adapters of which no part is zero."""
    draw = np.random.default_rng(seed)
    fresh = init_adapters(shapes(SMALL), SETTINGS, 0)
    return jax.tree.map(lambda x: x + draw.normal(0, 0.3, x.shape).astype(np.float32), fresh)


def batch():
    (part,) = lay_out([r.trajectory for r in ROWS], list(ADVANTAGES), padded(3, 8))
    return part.batch


def test_targets_are_found_by_the_end_of_their_name():
    assert adapted(shapes(SMALL), SETTINGS) == tuple(CHOSEN)
    assert len(adapted(shapes(TINY), LoRA(rank=2))) == 2 * 7
    assert adapted(shapes(TINY), LoRA(rank=2, targets=("model.layers.1.self_attn.v_proj",)))[0].count("1")
    untied = shapes(dataclasses.replace(SMALL, tie_word_embeddings=False))
    assert adapted(untied, LoRA(rank=2, targets=("*",)))[0] == "lm_head"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"targets": ("q_proj", "qkv")}, ("lora.targets: `qkv` matches no matrix", "down_proj, gate_proj", "v_proj")),
        ({"targets": ("embed_tokens",)}, ("`embed_tokens` matches no matrix",)),
        ({"rank": 16}, ("lora.rank = 16 is not low for model.layers.0.mlp.down_proj", "16 x 24", "below 16")),
    ],
)
def test_what_does_not_fit_the_model_is_refused(changes, words):
    with pytest.raises(RequestError) as caught:
        adapted(shapes(SMALL), SETTINGS.model_copy(update=changes))
    assert all(word in str(caught.value) for word in words)


@dataclasses.dataclass(frozen=True)
class Learned:
    """An updater after two updates, and what it was: before the first, and when its checkpoint was made, after it."""

    store: MemoryStore
    made: JaxUpdater
    fresh: tuple[str, Probe]
    figures: dict[str, float]
    checkpoint: CheckpointManifest
    digests: tuple[str, str]
    """Of parameters and optimizer at the end."""


@pytest.fixture(scope="module")
def learned():
    store = MemoryStore()
    made = updater(store)
    fresh = made.params_digest(), made.probe()
    made.update(ROWS, ADVANTAGES)
    kept = checkpoint(made)
    figures = made.update(ROWS, ADVANTAGES)
    return Learned(store, made, fresh, figures, kept, (made.params_digest(), made.optimizer_digest()))


def test_fresh_adapters_leave_the_model_as_it_is_to_the_bit(learned):
    fresh = init_adapters(shapes(SMALL), SETTINGS, 0)
    assert params_digest(merged(fresh, BASE, SETTINGS.scale)) == params_digest(BASE)
    assert learned.fresh == (params_digest(BASE), updater(lora=None).probe())
    for name, value in flatten(fresh).items():
        assert np.any(value) == ("lora_A" in name), name
    assert params_digest(fresh) != params_digest(init_adapters(shapes(SMALL), SETTINGS, 1))


def test_the_scale_is_that_of_the_papers():
    assert LoRA(rank=4, alpha=16).scale == 4
    assert LoRA(rank=4, alpha=16, rank_stabilized=True).scale == 8


def test_merged_weights_say_what_base_and_adapters_say():
    """Against a float64 forward pass in which a target is x -> W x + scale B (A x)."""
    adapters, tokens = moved(), [3, 1, 4, 1, 5, 9]
    flat = {name: np.asarray(value, np.float64) for name, value in flatten(adapters).items()}
    tensors: dict = {name: np.asarray(value, np.float64) for name, value in flatten(BASE).items()}
    for module in CHOSEN:
        a, b = (flat[f"{module}.lora_{side}.weight"] for side in "AB")
        tensors[f"{module}.weight"] = Adapted(tensors[f"{module}.weight"], a, b)
    wanted = numpy_llama.logits(SMALL.to_hf(), tensors, tokens)
    row = jnp.asarray(tokens)[None]
    found = apply(SMALL, merged(adapters, BASE, SETTINGS.scale), row, jnp.arange(6)[None], jnp.ones_like(row, bool))
    np.testing.assert_allclose(found[0], wanted, rtol=0, atol=1e-5)


class Adapted(np.ndarray):
    """A matrix that multiplies as base and adapters do, one after the other, and is never merged."""

    def __new__(cls, base, a, b):
        made = base.view(cls)
        made.sides = (a, b)
        return made

    def __array_finalize__(self, other):
        self.sides = getattr(other, "sides", None)

    def __matmul__(self, x):
        a, b = self.sides
        return np.asarray(self).view(np.ndarray) @ x + 1.5 * (b @ (a @ x))


def test_gradients_follow_from_the_dense_ones_by_the_chain_rule():
    """dB = scale dW Aᵀ and dA = scale Bᵀ dW, with dW from a pass that knows no adapters."""
    part, scale = batch(), SETTINGS.scale
    loss = lambda params: -jnp.sum(line_logprobs(SMALL, params, part)[0] * part.mask)  # noqa: E731
    adapters = moved()
    joined = lambda p: loss(merged(p, BASE, scale))  # noqa: E731
    slopes, own = jax.jit(lambda p: (jax.grad(loss)(merged(p, BASE, scale)), jax.grad(joined)(p)))(adapters)
    dense, found, flat = flatten(slopes), flatten(own), flatten(adapters)
    for module in CHOSEN:
        slope = np.asarray(dense[f"{module}.weight"], np.float64)
        a, b = (np.asarray(flat[f"{module}.lora_{side}.weight"], np.float64) for side in "AB")
        np.testing.assert_allclose(found[f"{module}.lora_B.weight"], scale * slope @ a.T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[f"{module}.lora_A.weight"], scale * b.T @ slope, rtol=1e-4, atol=1e-5)
    assert len(found) == 2 * len(CHOSEN)


def test_adapters_alone_are_trained_and_have_an_optimizer(learned):
    made, figures = learned.made, learned.figures
    assert figures["grad_norm"] > 0 and figures["reference_kl"] > 0
    before, after = flatten(BASE), flatten(made.params)
    assert sorted(n.removesuffix(".weight") for n in after if np.any(after[n] != before[n])) == CHOSEN
    moments = [leaf for leaf in jax.tree.leaves(made._state.optimizer) if leaf.ndim]
    assert sum(m.size for m in moments) == 2 * sum(x.size for x in jax.tree.leaves(made.trained))


def test_the_probe_and_the_digest_are_of_the_merged_weights(learned):
    made = learned.made
    whole = JaxUpdater(MemoryStore(), "base", RUN, SMALL, jax.tree.map(np.asarray, made.params))
    assert made.probe() == whole.probe() and made.params_digest() == whole.params_digest()


def checkpoint(made):
    prefix, files, optimizer = made.save(1, "L1")
    return CheckpointManifest(
        step=1, version=1, learner="L1", prefix=prefix, files=files, params_sha256=made.params_digest(),
        optimizer_sha256=optimizer, prng="", cursor={}, workers=0, low=0, limit=0, ended=(), admitted={}, recorded=(),
        unreadable=(), empty_steps=0, dispositions={}, ledger_index=0, ledger_head="", parent=None, initial=REF,
        policy=REF, config_digest="", code="", numerics=made.numerics(),
    )  # fmt: skip


def test_a_snapshot_goes_on_to_the_same_bytes(learned):
    made = learned.made
    made.load(learned.checkpoint)
    assert learned.checkpoint.params_sha256 == made.params_digest() != learned.digests[0]
    made.update(ROWS, ADVANTAGES)
    assert (made.params_digest(), made.optimizer_digest()) == learned.digests


def test_a_snapshot_holds_no_base(learned):
    dense = MemoryStore()
    updater(dense, lora=None).save(1, "L1")
    assert held(learned.store) < held(dense)


def held(store):
    return sum(len(store.get(key).data) for key in store.list(""))


def test_a_snapshot_of_adapters_on_another_base_is_refused(learned):
    run = RUN.model_copy(update={"lora": SETTINGS})
    other = JaxUpdater(learned.store, "base", run, SMALL, lively(BASE, 9), seed=5)
    with pytest.raises(RunStopped, match="not the one that its manifest names"):
        other.load(learned.checkpoint)


def test_weights_that_another_machine_merged_may_be_rounded_otherwise_but_not_the_adapters(learned):
    other = learned.checkpoint.model_copy(update={"params_sha256": "0" * 64})
    with pytest.raises(RunStopped, match="not the one that its manifest names"):
        learned.made.load(other)
    elsewhere = {"numerics": other.numerics.model_copy(update={"mesh": (1, 2, 1)})}
    learned.made.load(other.model_copy(update=elsewhere))
    with pytest.raises(RunStopped, match="not the one that its manifest names"):
        learned.made.load(other.model_copy(update=elsewhere | {"optimizer_sha256": "0" * 64}))


def test_the_digest_tells_adapters_with_one_product_apart(learned):
    made = updater(learned.store)
    made.load(learned.checkpoint)
    params, optimizer = made.params_digest(), made.optimizer_digest()
    factors = {"lora_A": 2.0, "lora_B": 0.5}
    flat = {name: value * factors[name.split(".")[-2]] for name, value in flatten(made.trained).items()}
    made._state = made._state._replace(params=nest(flat))
    assert made.params_digest() == params and made.optimizer_digest() != optimizer


def test_a_warm_up_learns_through_its_adapters():
    optimizer = make_optimizer(Optimizer(learning_rate=0.02), 20)
    trained, frozen = freeze(SETTINGS, BASE, 0)
    step, state = make_sft_step(SMALL, optimizer, frozen), init_state(trained, optimizer)
    losses = []
    for _ in range(20):
        state, figures = step(state, [batch()])
        losses.append(float(figures["loss"]))
    assert losses[-1] < losses[0] / 2
    assert freeze(None, BASE, 0)[1] is WHOLE


def test_the_files_are_those_of_peft():
    adapters = moved()
    files = peft_files(adapters, SETTINGS, REF)
    described = json.loads(files["adapter_config.json"])
    assert described["peft_type"] == "LORA" and described["target_modules"] == CHOSEN
    assert (described["r"], described["lora_alpha"], described["base_model_name_or_path"]) == (2, 3.0, "somewhere")
    tensors = load(files["adapter_model.safetensors"])
    assert sorted(tensors) == [f"base_model.model.{name}" for name in sorted(flatten(adapters))]
    first = f"base_model.model.{CHOSEN[0]}.lora_A.weight"
    np.testing.assert_array_equal(tensors[first], flatten(adapters)[first.removeprefix("base_model.model.")])
