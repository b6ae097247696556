"""The learner as a spawned process: `python -P -m trainer.learner_process --root URL --base runs/<run>/rl-<key>`."""

import argparse
import os
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any

from models.user_modules import check_same
from schemas import config_text, keys
from schemas.config import Run
from schemas.manifest import RLManifest, RLSpec, WeightsRef
from storage.objects import ObjectStore
from storage.open import open_store
from storage.process import emit, run_process
from storage.pulse import Repeated, busy, turn
from trainer.announced import AnnouncedUpdater
from trainer.compaction import Compactor
from trainer.learner import AgenticRLLearner
from trainer.numerics import bind_cores
from trainer.publish import Publisher
from trainer.recovery import newest_checkpoint


def main(args: argparse.Namespace) -> int:
    """Learn until the run is closed (0) or a stop was asked for (0, after an event `stopped`)."""
    started = time.time()
    store = open_store(args.root)
    key = keys.spec(args.base)
    spec = RLSpec.from_bytes(store.get(key).data, key)
    config = config_text.check(spec.config, key)
    check_same(config, spec.folder, spec.environment_sha256, spec.run)
    bind_cores(config.rl.cores)
    limit, compactor = config.supervision.work_seconds, Compactor(store, args.base, emit)
    with busy("loading weights", limit):
        from models.compiling import announce_compilations

        announce_compilations(limit)
        learner = build(store, spec, args.base, learner_id(), compactor)
    if learner.run() == "finished":
        with busy("copying the ledger into the catalog", limit):
            compactor.finish()
        finish(store, args.base, spec, learner, started)
    return 0


def learner_id() -> str:
    """New for every process start, so that two learners never write under one name."""
    return f"learner-{socket.gethostname()[:20]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def build(
    store: ObjectStore, spec: RLSpec, base: str, name: str, compact: Callable[[], None] = lambda: None
) -> AgenticRLLearner:
    """A learner with its decoder, optimizer and publisher, from version 0's weights."""
    from models.stored import load_weights, save_weights
    from trainer.jax_updater import JaxUpdater
    from trainer.peft_files import save_adapter

    config = Run.model_validate(spec.config)
    decoder, params, tokenizer = load_weights(store, spec.initial)
    made = JaxUpdater(store, base, config, decoder, params, spec.folder, seed=spec.seed)
    publishing = Repeated("publishing a policy", config.supervision.work_seconds)

    def save(prefix: str, params: Any, origin: str) -> WeightsRef:
        with publishing.once():
            save_adapter(store, prefix, made.trained, config.lora, spec.initial)
            return save_weights(store, prefix, decoder, params, tokenizer, config.rl.publish_dtype, origin)

    publisher = Publisher(store, base, spec.run, name, save, config.rl.publish_dtype, keep=config.rl.max_staleness + 2)
    updater = AnnouncedUpdater(made, config.supervision.work_seconds)
    return AgenticRLLearner(store, spec, base, updater, publisher, report=emit, stop=turn, compact=compact)


def finish(store: ObjectStore, base: str, spec: RLSpec, learner: AgenticRLLearner, started: float) -> None:
    """Write the stage's manifest; a longer continuation of the same stage replaces it."""
    checkpoint = newest_checkpoint(store, base)
    if checkpoint is None:
        return
    progress = learner.progress
    manifest = RLManifest(
        key=spec.key,
        steps=progress.step,
        version=progress.version,
        checkpoint=checkpoint.step,
        weights=checkpoint.policy,
        ledger_head=progress.head,
        dispositions=progress.dispositions,
        started=started,
        ended=time.time(),
    )
    store.put(keys.rl_manifest(base), manifest.to_bytes())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--base", required=True)
    run_process(main, parser)
