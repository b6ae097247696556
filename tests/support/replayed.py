"""Retrains an RL stage from version 0 by its ledger alone, in a process of its own, and prints its last digests.

`python -m support.replayed --root URL --base runs/<run>/rl-<key>`. Every published policy is compared on the way.
"""

import argparse
import json

from schemas import keys
from schemas.manifest import RLSpec
from storage.open import open_store
from trainer import recovery
from trainer.learner_process import build
from trainer.progress import Progress
from trainer.snapshot import optimizer_digest


def main(args: argparse.Namespace) -> None:
    store, key = open_store(args.root), keys.spec(args.base)
    learner = build(store, RLSpec.from_bytes(store.get(key).data, key), args.base, "replay")
    progress = Progress()
    learner.policy.admit(progress)
    records = recovery.replay(store, args.base, progress, learner.bounds, learner._replay_step)
    state = learner.updater._state  # type: ignore[attr-defined]
    digests = {"params": learner.updater.params_digest(), "optimizer": optimizer_digest(state)}
    print(json.dumps({"records": records, "step": progress.step, **digests}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--base", required=True)
    main(parser.parse_args())
