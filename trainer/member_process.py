"""One of several processes of a learner (`rl.processes`), spawned together: `python -P -m trainer.member_process --root
URL --base runs/<run>/rl-<key> --process I --address HOST:PORT`.

Process 0 is the learner as it always is, but for an updater whose calls all processes make. The others follow it.
"""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from storage.process import run_process
from storage.pulse import busy
from trainer.learner_process import Stage, build, learn, opened

if TYPE_CHECKING:
    from trainer.jax_updater import JaxUpdater
    from trainer.shared_updater import Trains


def main(args: argparse.Namespace) -> int:
    """Learn, or follow, until the first process has ended (0)."""
    stage = opened(args)
    rl, limit = stage.config.rl, stage.config.supervision.work_seconds
    with busy("meeting the learner's other processes", limit):
        from trainer import orders

        orders.join(args.process, rl.processes, args.address, rl.mesh.devices // rl.processes, limit)
    return follow(stage) if args.process else lead(stage)


def lead(stage: Stage) -> int:
    """Learn as the first process."""
    from trainer import orders
    from trainer.shared_updater import Leader, SharedUpdater

    leader = Leader(orders.say)

    def share(made: "JaxUpdater") -> "Trains":
        return SharedUpdater(made, leader, orders.partners)

    def ended() -> None:
        leader.order("end")
        orders.leave()

    return learn(stage, partial(build, share=share, stop=leader.turn), ended)


def follow(stage: Stage) -> int:
    """Make the calls that the first process orders."""
    from trainer import orders

    limit = stage.config.supervision.work_seconds
    with busy("loading weights", limit):
        from models.compiling import announce_compilations
        from models.stored import load_weights
        from trainer.follower import Follower
        from trainer.jax_updater import JaxUpdater

        announce_compilations(limit)
        spec, store = stage.spec, stage.store
        decoder, params, _ = load_weights(store, spec.initial)
        made = JaxUpdater(store, stage.base, stage.config, decoder, params, spec.folder, seed=spec.seed)
    Follower(made, store, stage.base, limit, orders.partners).follow(orders.hear)
    orders.leave()
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--process", required=True, type=int)
    parser.add_argument("--address", required=True)
    run_process(main, parser)
