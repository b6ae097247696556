"""The updater that learns: a decoder's parameters and AdamW under one jitted step."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from models.config import DecoderConfig
from models.logprobs import token_logprobs
from models.pure import Params
from models.sharding import placement
from models.weights import params_digest
from schemas.config import Run
from schemas.errors import RunStopped
from schemas.manifest import CheckpointManifest, Numerics, Probe
from storage.objects import ObjectStore
from trainer import snapshot
from trainer.assembler import Row
from trainer.batch import Batch, Part, lay_out
from trainer.critic import Critic
from trainer.divergence import LOSS_TERMS
from trainer.lora import freeze
from trainer.mini_batches import deal, together
from trainer.numerics import numerics
from trainer.optimizer import make_optimizer
from trainer.packing import rl_layout
from trainer.step import Passes, TrainState, init_state, line_logprobs, make_rl_step, positions

_PROBE_TOKENS = 64
"""At 16, updates of a few rows of the output head often stay unseen; an engine takes `rollout.engine.SCORED`."""


class JaxUpdater:
    """Implements `trainer.updater.Updater` on this process's devices."""

    def __init__(
        self,
        store: ObjectStore,
        base: str,
        config: Run,
        decoder: DecoderConfig,
        params: Params,
        folder: str = "",
        *,
        seed: int = 0,
    ) -> None:
        """`params`: version 0. `seed`: of adapters, where the configuration has them."""
        rl = config.rl
        self._store, self._base, self._decoder = store, base, decoder
        self._layout = rl_layout(rl, config.rollout.max_length)
        optimizer = make_optimizer(rl.optimizer, rl.steps * rl.updates)
        self._epochs, self._mini_batches = rl.epochs, rl.mini_batches
        self._recomputed = rl.updates > 1 and rl.loss.correction != "none"
        self._mesh, self._placement = rl.mesh, placement(rl.mesh)
        trained, self._frozen = freeze(config.lora, params, seed, self._placement)
        self._state = init_state(trained, optimizer, self._placement)
        passes = Passes(rl.remat, rl.compute_dtype, self._placement)
        self._step = make_rl_step(
            decoder, rl.loss, optimizer, folder, passes, recomputed=self._recomputed, frozen=self._frozen
        )
        self._critic: Critic | None = None
        if rl.loss.critic:
            own = make_optimizer(rl.critic_optimizer or rl.optimizer, rl.steps * rl.updates)
            self._critic = Critic(decoder, rl.loss, own, params, passes)
        self._kl = rl.loss.kl
        self._reference = (self._frozen.params or self._placement.fresh(params)) if rl.loss.kl != "none" else None
        self._rounded = rl.publish_dtype == "bfloat16"
        self._probe = _probe_tokens(decoder.vocab_size, config.rollout.max_length)
        self._line_logprobs = jax.jit(lambda p, batch: line_logprobs(decoder, p, batch, passes)[0])
        self._score = jax.jit(lambda p, t: token_logprobs(decoder, p, t, positions(t), jnp.ones(t.shape, bool))[0])

    def update(self, rows: tuple[Row, ...], advantages: tuple[float, ...]) -> dict[str, float]:
        dealt = [self._prepared(one, own) for one, own in deal(rows, advantages, self._mini_batches)]
        if self._critic is None:
            return together([self._one(parts) for _ in range(self._epochs) for parts in dealt])
        judged, lessons, explained = self._critic.judge(dealt)
        pairs = [pair for _ in range(self._epochs) for pair in zip(judged, lessons, strict=True)]
        made = [self._one(parts) | self._critic.learn(own) for parts, own in pairs]
        return together(made) | {"value_explained": explained}

    def _prepared(self, rows: tuple[Row, ...], advantages: tuple[float, ...]) -> list[Batch[np.ndarray]]:
        """The micro-batches of one update, with what is measured before the step's first update."""
        parts = [p.batch for p in self._parts(rows, advantages)]
        if self._kl in LOSS_TERMS:
            parts = [p._replace(reference=self._reference_logprobs(p)) for p in parts]
        if self._recomputed:
            policy = self._policy
            parts = [p._replace(proximal=self._logprobs(policy, p)) for p in parts]
        return parts

    def _one(self, parts: list[Batch[np.ndarray]]) -> dict[str, float]:
        self._state, figures = self._step(self._state, parts)
        found = {k: float(v) for k, v in figures.items()}
        if not all(map(math.isfinite, found.values())):
            raise RunStopped(
                f"the update is not finite ({found}): lower rl.optimizer.learning_rate, or mend the loss if it "
                f"is your own; the batch is in the ledger and its shards are kept"
            )
        return found

    def _parts(self, rows: tuple[Row, ...], advantages: Sequence[float]) -> list[Part]:
        return lay_out([r.trajectory for r in rows], advantages, self._layout)

    def reference_gap(self, rows: tuple[Row, ...]) -> NDArray[np.float64]:
        out = np.zeros(len(rows), np.float64)
        for part in self._parts(rows, [0.0] * len(rows)):
            batch = part.batch
            gap = ((batch.behaviour - self._reference_logprobs(batch)) * batch.mask).sum(axis=1, dtype=np.float64)
            out[list(part.chosen)] = gap[: len(part.chosen)]
        return out

    def _reference_logprobs(self, batch: Batch[np.ndarray]) -> np.ndarray:
        """[N, L] log-probs under version 0."""
        return self._logprobs(self._reference, batch)

    def _logprobs(self, params: Any, batch: Batch[np.ndarray]) -> np.ndarray:
        found = self._line_logprobs(params, self._placement.dealt(batch))
        return np.asarray(self._placement.readable(found))

    def probe(self) -> Probe:
        params = _published(self._policy) if self._rounded else self._policy
        logprobs = np.asarray(self._placement.readable(self._score(params, self._probe[None])))[0, 1:]
        return Probe(tokens=tuple(int(t) for t in self._probe), logprobs=tuple(float(p) for p in logprobs))

    @property
    def _policy(self) -> Any:
        """All parameters as they lie on the devices."""
        return self._frozen.whole(self._state.params)

    @property
    def params(self) -> Any:
        return self._placement.readable(self._policy)

    @property
    def trained(self) -> Any:
        """What updates change: all parameters, or adapters."""
        return self._placement.readable(self._state.params)

    def params_digest(self) -> str:
        return params_digest(self.params)

    def optimizer_digest(self) -> str:
        return self._digests(self._whole)[1]

    def _digests(self, state: TrainState) -> tuple[str, str]:
        """Of all parameters, and of the optimizer. Adapters stand with the latter: their product alone is not they."""
        adapters = self._frozen.params is not None
        whole = self._placement.readable(self._frozen.whole(state.params))
        return params_digest(whole), snapshot.optimizer_digest(self._placement.readable(state), trained=adapters)

    def save(self, step: int, learner: str) -> tuple[str, dict[str, str], str]:
        state = self._placement.readable(self._whole)
        prefix, files = snapshot.save(self._store, self._base, state, step, learner)
        return prefix, files, self.optimizer_digest()

    def load(self, manifest: CheckpointManifest) -> None:
        found = snapshot.load(self._store, manifest, self._whole, lambda state: self._named(state, manifest))
        if self._critic is None:
            self._state = found
        else:
            optimizer, self._critic.state = found.optimizer
            self._state = found._replace(optimizer=optimizer)

    def _named(self, state: TrainState, manifest: CheckpointManifest) -> bool:
        """Whether the manifest names this state. Weights that adapters are merged into are made anew, which another
        mesh or machine rounds otherwise; the adapters themselves must be those of the manifest everywhere."""
        params, optimizer = self._digests(state)
        elsewhere = self._frozen.params is not None and manifest.numerics != self.numerics()
        return optimizer == manifest.optimizer_sha256 and (elsewhere or params == manifest.params_sha256)

    @property
    def _whole(self) -> TrainState:
        """All that a snapshot keeps: a critic stands beside the optimizer."""
        if self._critic is None:
            return self._state
        return self._state._replace(optimizer=(self._state.optimizer, self._critic.state))

    def numerics(self) -> Numerics:
        return numerics(self._mesh)


@jax.jit
def _published(params: Params) -> Params:
    """Parameters as a reader of bfloat16 files gets them."""
    return jax.tree.map(lambda x: jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7), params)


def _probe_tokens(vocabulary: int, context: int) -> np.ndarray:
    """Token ids spread over the vocabulary, the same for every policy of a model; one sampled token must fit behind."""
    return ((np.arange(min(_PROBE_TOKENS, context - 1)) * 7919 + 13) % vocabulary).astype(np.int32)
