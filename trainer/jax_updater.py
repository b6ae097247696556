"""The updater that learns: a decoder's parameters and AdamW under one jitted step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from models.config import DecoderConfig
from models.logprobs import token_logprobs
from models.pure import Params
from models.weights import params_digest
from schemas.config import Run
from schemas.errors import RunStopped
from schemas.manifest import CheckpointManifest, Numerics, Probe
from storage.objects import ObjectStore
from trainer import snapshot
from trainer.assembler import Row
from trainer.batch import Batch, pad_batch
from trainer.divergence import LOSS_TERMS
from trainer.numerics import numerics
from trainer.optimizer import make_optimizer
from trainer.step import init_state, make_rl_step, positions

_PROBE_TOKENS = 64
"""At 16, updates of a few rows of the output head often stay unseen; an engine takes `rollout.engine.SCORED`."""


class JaxUpdater:
    """Implements `trainer.updater.Updater` on this process's devices."""

    def __init__(
        self, store: ObjectStore, base: str, config: Run, decoder: DecoderConfig, params: Params, folder: str = ""
    ) -> None:
        rl = config.rl
        self._store, self._base, self._decoder = store, base, decoder
        self._rows, self._length = rl.groups_per_batch * rl.group_size, config.rollout.max_length
        optimizer = make_optimizer(rl.optimizer, rl.steps)
        parts = self._rows // rl.micro_batch if rl.micro_batch else 1
        self._state = init_state(jax.tree.map(jnp.array, params), optimizer)
        self._step = make_rl_step(decoder, rl.loss, optimizer, parts, folder)
        self._kl = rl.loss.kl
        self._reference = jax.tree.map(jnp.array, params) if rl.loss.kl != "none" else None
        self._part = self._rows // parts
        self._rounded = rl.publish_dtype == "bfloat16"
        self._probe = _probe_tokens(decoder.vocab_size, self._length)
        self._logprobs = jax.jit(lambda p, t, valid: token_logprobs(decoder, p, t, positions(t), valid)[0])

    def update(self, rows: tuple[Row, ...], advantages: tuple[float, ...]) -> dict[str, float]:
        batch = pad_batch([r.trajectory for r in rows], advantages, self._rows, self._length)
        if self._kl in LOSS_TERMS:
            batch = batch._replace(reference=self._reference_logprobs(batch))
        self._state, figures = self._step(self._state, batch)
        found = {k: float(v) for k, v in figures.items()}
        if not np.isfinite(found["loss"]) or not np.isfinite(found["grad_norm"]):
            raise RunStopped(
                f"the update is not finite (loss {found['loss']}, gradient norm {found['grad_norm']}): lower "
                f"rl.optimizer.learning_rate; the batch is in the ledger and its shards are kept"
            )
        return found

    def reference_gap(self, rows: tuple[Row, ...]) -> NDArray[np.float64]:
        batch = pad_batch([r.trajectory for r in rows], [0.0] * len(rows), self._rows, self._length)
        gap = (batch.behaviour - self._reference_logprobs(batch)) * batch.mask
        return gap.sum(axis=1, dtype=np.float64)[: len(rows)]

    def _reference_logprobs(self, batch: Batch[np.ndarray]) -> np.ndarray:
        """[R, T] log-probs under version 0, a micro-batch at a time."""
        parts = [slice(i, i + self._part) for i in range(0, self._rows, self._part)]
        found = [self._logprobs(self._reference, batch.tokens[p], batch.valid[p]) for p in parts]
        return np.concatenate([np.asarray(f) for f in found])

    def probe(self) -> Probe:
        tokens = self._probe[None]
        params = _published(self._state.params) if self._rounded else self._state.params
        logprobs = np.asarray(self._logprobs(params, tokens, np.ones_like(tokens, bool)))[0, 1:]
        return Probe(tokens=tuple(int(t) for t in self._probe), logprobs=tuple(float(p) for p in logprobs))

    @property
    def params(self) -> Any:
        return self._state.params

    def params_digest(self) -> str:
        return params_digest(self._state.params)

    def optimizer_digest(self) -> str:
        return snapshot.optimizer_digest(self._state)

    def save(self, step: int, learner: str) -> tuple[str, dict[str, str], str]:
        prefix, files = snapshot.save(self._store, self._base, self._state, step, learner)
        return prefix, files, self.optimizer_digest()

    def load(self, manifest: CheckpointManifest) -> None:
        self._state = snapshot.load(self._store, manifest, self._state)

    def numerics(self) -> Numerics:
        return numerics()


@jax.jit
def _published(params: Params) -> Params:
    """Parameters as a reader of bfloat16 files gets them."""
    return jax.tree.map(lambda x: jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7), params)


def _probe_tokens(vocabulary: int, context: int) -> np.ndarray:
    """Token ids spread over the vocabulary, the same for every policy of a model; one sampled token must fit behind."""
    return ((np.arange(min(_PROBE_TOKENS, context - 1)) * 7919 + 13) % vocabulary).astype(np.int32)
