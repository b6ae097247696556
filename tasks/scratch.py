"""Untrained weights as a stage, for runs without a warm-up: `python -P -m tasks.scratch --root URL --run NAME`.

Its own process, so that the driver never imports JAX.
"""

import argparse
import time

from schemas import keys
from schemas.config import Run
from schemas.errors import RequestError
from schemas.manifest import RunManifest, StageManifest
from schemas.version import code_version
from storage.objects import ObjectExists, ObjectStore
from storage.open import open_store
from storage.process import run_process
from storage.pulse import busy
from tasks.plan import scratch_key


def make(store: ObjectStore, config: Run, seed: int) -> None:
    """Make the weights and their manifest, unless they are there."""
    from models.config import DecoderConfig
    from models.pure import init_params
    from models.stored import save_weights
    from models.tokenizer import ByteTokenizer

    if config.model.architecture is None:
        raise RequestError("weights from scratch need [model.architecture]")
    started, key = time.time(), scratch_key(config, seed)
    shape, tokenizer = config.model.architecture, ByteTokenizer()
    decoder = DecoderConfig.from_architecture(shape, tokenizer.vocab_size, tokenizer.special("<|end|>"))
    prefix = keys.stage("scratch", key)
    attempt = f"{prefix}/weights/{time.time_ns():x}"
    weights = save_weights(store, attempt, decoder, init_params(decoder, seed), tokenizer, "float32", prefix)
    manifest = StageManifest(
        stage="scratch",
        key=key,
        config={"architecture": shape.model_dump(mode="json"), "seed": seed},
        inputs=(),
        weights=weights,
        code=code_version(),
        started=started,
        ended=time.time(),
    )
    try:
        store.create(keys.stage_manifest("scratch", key), manifest.to_bytes())
    except ObjectExists:
        return


def _main(args: argparse.Namespace) -> None:
    store = open_store(args.root)
    key = keys.run_manifest(args.run)
    config = Run.model_validate(RunManifest.from_bytes(store.get(key).data, key).config)
    with busy("making weights", config.supervision.work_seconds):
        make(store, config, config.seed or 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--run", required=True)
    run_process(_main, parser)
