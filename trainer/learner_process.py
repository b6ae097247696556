"""The learner as a spawned process: `python -P -m trainer.learner_process --root URL --base runs/<run>/rl-<key>`."""

import argparse
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from trainer.jax_updater import JaxUpdater
    from trainer.shared_updater import Trains


@dataclass(frozen=True)
class Stage:
    """What a process of the learner learns, and since when."""

    store: ObjectStore
    base: str
    spec: RLSpec
    config: Run
    started: float


def main(args: argparse.Namespace) -> int:
    """Learn until the run is closed (0) or a stop was asked for (0, after an event `stopped`)."""
    return learn(opened(args), build)


def opened(args: argparse.Namespace) -> Stage:
    """The stage, checked, with this process bound to its cores."""
    started, store = time.time(), open_store(args.root)
    key = keys.spec(args.base)
    spec = RLSpec.from_bytes(store.get(key).data, key)
    config = config_text.check(spec.config, key)
    check_same(config, spec.folder, spec.environment_sha256, spec.run)
    bind_cores(config.rl.cores)
    return Stage(store, args.base, spec, config, started)


def learn(stage: Stage, build: Callable[..., AgenticRLLearner], ended: Callable[[], None] = lambda: None) -> int:
    """Run the learner that `build` makes; `ended` is called when it has ended well, before what is left to write."""
    limit, compactor = stage.config.supervision.work_seconds, Compactor(stage.store, stage.base, emit)
    with busy("loading weights", limit):
        from models.compiling import announce_compilations

        announce_compilations(limit)
        learner = build(stage.store, stage.spec, stage.base, learner_id(), compactor)
    how = learner.run()
    ended()
    if how == "finished":
        with busy("copying the ledger into the catalog", limit):
            compactor.finish()
        finish(stage.store, stage.base, stage.spec, learner, stage.started)
    return 0


def learner_id() -> str:
    """New for every process start, so that two learners never write under one name."""
    return f"learner-{socket.gethostname()[:20]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def build(
    store: ObjectStore,
    spec: RLSpec,
    base: str,
    name: str,
    compact: Callable[[], None] = lambda: None,
    *,
    share: "Callable[[JaxUpdater], Trains]" = lambda made: made,
    stop: Callable[[], bool] = turn,
) -> AgenticRLLearner:
    """A learner with its decoder, optimizer and publisher, from version 0's weights. `share`: the updater that it
    calls, made of this process's own."""
    from models.stored import load_weights, save_weights
    from trainer.jax_updater import JaxUpdater
    from trainer.peft_files import save_adapter

    config = Run.model_validate(spec.config)
    decoder, params, tokenizer = load_weights(store, spec.initial)
    made = share(JaxUpdater(store, base, config, decoder, params, spec.folder, seed=spec.seed))
    publishing = Repeated("publishing a policy", config.supervision.work_seconds)

    def save(prefix: str, params: Any, origin: str) -> WeightsRef:
        with publishing.once():
            if config.lora is not None:
                save_adapter(store, prefix, made.trained, config.lora, spec.initial)
            return save_weights(store, prefix, decoder, params, tokenizer, config.rl.publish_dtype, origin)

    publisher = Publisher(store, base, spec.run, name, save, config.rl.publish_dtype, keep=config.rl.max_staleness + 2)
    updater = AnnouncedUpdater(made, config.supervision.work_seconds)
    return AgenticRLLearner(store, spec, base, updater, publisher, report=emit, stop=stop, compact=compact)


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
