"""A warm-up as a spawned process: `python -P -m trainer.warm_up --root URL --spec KEY`.

The stage's manifest is created last, so a half-written attempt never counts; a stage that has one is done.
"""

import argparse
import math
import time
import uuid
from typing import TYPE_CHECKING, Any

from schemas import config_text, keys
from schemas.config import Run
from schemas.digest import sha256
from schemas.errors import RequestError, RunStopped
from schemas.manifest import StageManifest, WarmUpSpec, WeightsRef
from schemas.selection import Selection
from schemas.version import code_version
from schemas.warm_ups import SFT, WarmUp
from storage.objects import ObjectExists, ObjectStore
from storage.open import open_store
from storage.process import emit, run_process
from storage.pulse import Repeated, busy, turn
from storage.rows import read_demonstrations, read_preferences
from trainer.numerics import bind_cores, numerics

if TYPE_CHECKING:
    import numpy as np
    import optax

    from models.config import DecoderConfig
    from models.pure import Params
    from models.sharding import Placement
    from models.tokenizer import Tokenizer
    from trainer.lessons import Lesson
    from trainer.step import Frozen


def main(args: argparse.Namespace) -> int:
    """Train the stage that the spec names, unless it is done."""
    store = open_store(args.root)
    spec = WarmUpSpec.from_bytes(store.get(args.spec).data, args.spec)
    done = keys.stage_manifest(spec.stage, spec.key)
    if store.head(done) is not None:
        return 0
    config = config_text.check(spec.config, args.spec)
    bind_cores(config.rl.cores)
    stage = next((s for s in config.warm_up if s.name == spec.stage), None)
    if stage is None:
        raise RequestError(f"{args.spec} names the warm-up stage `{spec.stage}`, which its configuration does not have")
    started = time.time()
    trained = train(store, spec, config, stage)
    if trained is None:
        emit("stopped")
        return 0
    weights, metrics = trained
    manifest = StageManifest(
        stage=spec.stage,
        key=spec.key,
        config=stage.model_dump(mode="json"),
        inputs=spec.inputs,
        weights=weights,
        metrics=metrics,
        code=code_version(),
        numerics=numerics(config.rl.mesh),
        started=started,
        ended=time.time(),
    )
    try:
        store.create(done, manifest.to_bytes())
    except ObjectExists:
        emit("log", message=f"{done} was written by another process meanwhile: its result stands")
    return 0


def train(
    store: ObjectStore, spec: WarmUpSpec, config: Run, stage: WarmUp
) -> tuple[WeightsRef, dict[str, float]] | None:
    """Train and store the weights; None if a stop was asked for."""
    limit = config.supervision.work_seconds
    with busy("loading weights", limit):
        from models.compiling import announce_compilations
        from models.sharding import placement
        from models.stored import save_weights
        from trainer.lora import freeze
        from trainer.peft_files import save_adapter

        announce_compilations(limit)
        spread = placement(config.rl.mesh)
        decoder, params, tokenizer = _start(store, spec, config)
    if stage.max_length > decoder.max_position_embeddings:
        raise RequestError(
            f"warm-up `{stage.name}` has max_length = {stage.max_length}, but the model sees at most "
            f"{decoder.max_position_embeddings} tokens (max_position_embeddings): lower max_length"
        )
    lora = config.lora if spec.initial is not None else None
    trained, frozen = freeze(lora, params, spec.seed, spread)
    lesson = _lesson(store, spec, stage, decoder, params, tokenizer, frozen, spread, limit)
    fitted = _run(*lesson, trained, spread, stage, limit) if lesson else None
    if fitted is None:
        return None
    trained, figures = fitted
    origin = keys.stage(spec.stage, spec.key)
    prefix = f"{origin}/weights/{uuid.uuid4().hex[:8]}"
    with busy("saving weights", limit):
        save_adapter(store, prefix, trained, lora, spec.initial)
        whole = frozen.whole(trained)
        return save_weights(store, prefix, decoder, whole, tokenizer, "float32", origin), figures


def _lesson(
    store: ObjectStore,
    spec: WarmUpSpec,
    stage: WarmUp,
    decoder: "DecoderConfig",
    params: "Params",
    tokenizer: "Tokenizer",
    frozen: "Frozen",
    spread: "Placement",
    limit: float,
) -> "tuple[Lesson, optax.GradientTransformation, np.ndarray] | None":
    """What the stage trains by, its optimizer and the order of its examples; None if a stop was asked for."""
    from trainer.lessons import preferring, score_reference, supervised
    from trainer.optimizer import make_optimizer
    from trainer.sft_data import order

    optimizer = make_optimizer(stage.optimizer, stage.steps)
    with busy("reading what to learn from", limit):
        examples = _examples(store, spec, stage, tokenizer)
    plan = order(len(examples), stage.batch_size, stage.steps, spec.seed, stage.shuffle)
    if isinstance(stage, SFT):
        lesson = supervised(decoder, optimizer, examples, stage, frozen, spread)
    else:
        start = params if spec.initial is not None else None
        reference = score_reference(decoder, start, examples, stage, plan, limit, spread)
        if reference is None:
            return None
        lesson = preferring(decoder, optimizer, examples, stage, reference, frozen, spread)
    return lesson, optimizer, plan


def _examples(store: ObjectStore, spec: WarmUpSpec, stage: WarmUp, tokenizer: "Tokenizer") -> Any:
    """Streams of demonstrations or of both sides of pairs, from a data file or a run's log."""
    from trainer.own_log import taken_examples, taken_pairs
    from trainer.streams import encode_all, encode_pairs

    raw, supervised = _data(store, spec, stage), isinstance(stage, SFT)
    if not isinstance(stage.data, str):
        selection = Selection.from_bytes(raw, spec.data)
        return (taken_examples if supervised else taken_pairs)(store, selection, tokenizer)
    suffix = spec.data.rpartition(".")[2]
    if supervised:
        return encode_all(read_demonstrations(raw, suffix, stage.data), tokenizer, stage.max_length)
    return encode_pairs(read_preferences(raw, suffix, stage.data), tokenizer, stage.max_length)


def _run(
    lesson: "Lesson",
    optimizer: "optax.GradientTransformation",
    plan: "np.ndarray",
    params: "Params",
    spread: "Placement",
    stage: WarmUp,
    limit: float,
) -> "tuple[Params, dict[str, float]] | None":
    """Take a step for each row of the plan; what is trained after them, and the last step's figures.

    None if a stop was asked for.
    """
    from trainer.step import init_state

    state = init_state(params, optimizer, spread)
    figures: dict[str, float] = {}
    progress, stepping = _Progress(stage), Repeated("a step", limit)
    for number, chosen in enumerate(plan, 1):
        if turn():
            return None
        parts = lesson.parts(chosen)
        with stepping.once():
            state, found = lesson.step(state, parts)
            figures = {name: float(value) for name, value in found.items()}
        if not all(map(math.isfinite, figures.values())):
            raise RunStopped(
                f"warm-up `{stage.name}` is not finite at step {number} ({figures}): lower its learning_rate"
            )
        progress.tell(number, figures, sum(int(part.valid.sum()) for part in parts))
    return state.params, figures


def _data(store: ObjectStore, spec: WarmUpSpec, stage: WarmUp) -> bytes:
    """The stage's data file, which must be the one that its key was made from."""
    raw = store.get(spec.data).data
    if sha256(raw) != spec.data_sha256:
        raise RunStopped(f"{spec.data} in the store is not the file that warm-up `{stage.name}` was planned with")
    return raw


def _start(store: ObjectStore, spec: WarmUpSpec, config: Run) -> "tuple[DecoderConfig, Params, Tokenizer]":
    """Decoder shape, parameters and tokenizer to start from: given weights, or from scratch by the seed."""
    from models.config import DecoderConfig
    from models.pure import init_params
    from models.stored import load_weights
    from models.tokenizer import ByteTokenizer

    if spec.initial is not None:
        return load_weights(store, spec.initial)
    shape = config.model.architecture
    if shape is None:
        raise RequestError("a warm-up without initial weights needs [model.architecture]")
    tokenizer = ByteTokenizer()
    decoder = DecoderConfig.from_architecture(shape, tokenizer.vocab_size, tokenizer.special("<|end|>"))
    return decoder, init_params(decoder, spec.seed), tokenizer


class _Progress:
    """Tells the supervisor about a step, at most twice a second."""

    def __init__(self, stage: WarmUp) -> None:
        self._stage, self._last, self._started, self._tokens = stage, 0.0, time.monotonic(), 0

    def tell(self, step: int, figures: dict[str, float], tokens: int) -> None:
        now = time.monotonic()
        self._tokens += tokens
        if now - self._last < 0.5 and step < self._stage.steps:
            return
        self._last = now
        rate = self._tokens / (now - self._started)
        emit("warm_up", name=self._stage.name, step=step, steps=self._stage.steps, tokens_per_second=rate, **figures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--spec", required=True)
    run_process(main, parser)
